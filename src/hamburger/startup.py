"""What `ham` needs before its first import: an answer to Ctrl-C, and standard streams.

The import of torch takes seconds, and it precedes every line of `hamburger.cli`. So `hamburger/__init__.py` imports
this module first. Ctrl-C then ends in one line and exit status 130, not in a traceback out of an import.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"ham: interrupted\n")
    os._exit(130)  # nothing is open yet; an exception could be swallowed by the import it interrupts


def _is_ham() -> bool:
    """Whether this process is `ham` or `python -m hamburger`; argv[0] is "-m" while Python imports the package."""
    command, arguments = sys.argv[0] if sys.argv else "", sys.orig_argv
    return Path(command).stem == "ham" or (
        command == "-m" and arguments[arguments.index("-m") + 1 :][:1] == ["hamburger"]
    )


def end_startup() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt_on_sigterm() -> None:
    """From now on SIGTERM acts as Ctrl-C, which deletes temporary folders."""
    if RUNS_HAM:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def start_shutdown() -> None:
    """From now on Ctrl-C ends the process as it did at the start: Python prints a traceback while it exits."""
    if RUNS_HAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def open_closed_streams() -> None:
    """Open standard streams that the caller has closed (`ham ... 2>&-`): they read and write nothing.

    The next file that is opened would get the number of a closed stream, and messages of compiled code with it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            if (handle := os.open(os.devnull, os.O_RDWR)) != number:
                os.dup2(handle, number)
                os.close(handle)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


RUNS_HAM = _is_ham()
if RUNS_HAM:
    open_closed_streams()
if RUNS_HAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
    signal.signal(signal.SIGINT, _end)
