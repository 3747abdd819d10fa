"""Ctrl-C while `ham` starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tiers import full_except

from hamburger import startup

# Python runs it before `-m hamburger`: Ctrl-C just as a module is imported
CUSTOMIZE = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""
MODULES = ("torch", "hamburger.hams", "typer", "hamburger.training.train", "hamburger.segmentation.task")


def start(module, tmp_path, *words, more=(), ignore=False):
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZE)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *words, "train", "patchwork", "--run", str(tmp_path / "run"), *more],
        env={**os.environ, "PYTHONPATH": path, "INTERRUPT_AT": module},
        # a script that runs the tests in the background ignores Ctrl-C, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignore else signal.SIG_DFL),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("module", full_except(("torch",), MODULES))
def test_interrupted_start_says_so_in_one_line(module, tmp_path):
    script = tmp_path / "ham"  # as pip writes it
    script.write_text("import sys\nfrom hamburger.cli import main\nsys.exit(main())\n")
    for words in (("-m", "hamburger"), (str(script),)):
        ended = start(module, tmp_path, *words)
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "ham: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="closes streams as shells of POSIX do")
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_read_and_write_nothing(closed, tmp_path):
    """Otherwise the next file opened is stderr to compiled code, and writing an error raises one."""
    script = tmp_path / "ham.py"
    script.write_text(
        f"import os, sys\nexec(open({startup.__file__!r}).read())\n"
        "file = open(sys.argv[1], 'w')\nprint('out', file=sys.stdout)\nprint('error', file=sys.stderr)\n"
        "os.write(1, b'')\nos.write(2, b'')\nfile.write(f'{file.fileno() > 2} {sys.stdin is not None}')\n"
    )
    command = f'"{sys.executable}" -S "{script}" "{tmp_path}/written" {closed}'
    ended = subprocess.run(command, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"" if "2" in closed else b"error\n")
    assert (tmp_path / "written").read_text() == "True True"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_an_interrupt_while_python_exits_says_so_in_one_line(tmp_path):
    script = tmp_path / "ham.py"
    script.write_text(
        f"import atexit, signal\nexec(open({startup.__file__!r}).read())\nend_startup()\nstart_shutdown()\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-S", script],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "ham: interrupted\n")


@pytest.mark.full
def test_programs_that_import_the_library_keep_their_signals(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("try:\n    import hamburger\nexcept KeyboardInterrupt:\n    print('as usual')\n")
    assert start("torch", tmp_path, str(script)).stdout == "as usual\n"
    ignoring = start(
        "torch", tmp_path, "-m", "hamburger", more=("--set", "zzz=1"), ignore=True
    )  # a background process of a script
    assert ignoring.returncode == 2 and "no field 'zzz'" in ignoring.stderr
