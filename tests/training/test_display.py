"""What a user sees of a run: bars that fit 80 columns, plain lines elsewhere."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import small_run
from rich.console import Console

import hamburger as hb
from hamburger.cli.output import phase_progress
from hamburger.tasks import tasks
from hamburger.training import display
from hamburger.training.display import TrainingDisplay, progress_bar
from hamburger.training.metrics_log import (
    CheckProgress,
    Note,
    RunStarted,
    ScoresEvaluated,
    StepLogged,
    ValidationProgress,
)

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and movements of the cursor
START = RunStarted(Path("runs/voc"), 0, 22_500, 35_000_000, 10_582, 1_449, "cuda:0", 1)
STEP = StepLogged(11_250, 0.43215, 0.01, 1043.25, 0.02, 19_999.0)


def on_terminal(*events, width=80, clock=None, seconds=0):
    """The text on a terminal after the events, without colours; `seconds` pass before each event."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with TrainingDisplay(console) as show:
        for event in events:
            if clock is not None:
                clock.now += seconds
            show(event)
        console.print(show.bar.get_renderable())
    return CODES.sub("", console.file.getvalue().replace("\r", "\n"))


def test_the_bar_of_a_training_fits_80_columns_and_shows_rate_and_remaining_time():
    text = on_terminal(START, STEP)
    line = next(line for line in text.splitlines() if "11250/22500" in line)
    assert "loss 0.4321, 1043.2 images/s, 5:33:19 left" in line and len(line.rstrip()) <= 80


@pytest.fixture
def clock(monkeypatch):
    """Seconds since a start, for bars; a test may set them."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(display.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr("rich.console.monotonic", lambda: clock.now)
    return clock


PHASES = {ValidationProgress: ([START, STEP], "validating"), CheckProgress: ([], "checking the data")}


@pytest.mark.parametrize("phase", PHASES)
def test_validation_and_check_have_a_bar_of_their_own(clock, phase):
    before, name = PHASES[phase]
    text = on_terminal(*before, phase(0, 1449), phase(400, 1449), clock=clock, seconds=20)
    line = next(line for line in text.splitlines() if name in line and "400/1449" in line)
    assert "20.0 images/s, 0:00:52 left" in line and len(line.rstrip()) <= 80


@pytest.mark.parametrize("phase", PHASES)
def test_without_a_terminal_validation_and_check_print_a_line_now_and_then(clock, phase):
    console = Console(file=io.StringIO(), width=80)
    with TrainingDisplay(console) as show:
        for done in range(6):
            show(phase(done, 5))
            clock.now += 10
    assert console.file.getvalue() == f"{PHASES[phase][1]}: 3 of 5 images, 0.1 images/s, 0:00:20 left\n"


def test_the_bars_of_validation_and_check_end_with_them():
    scores = ScoresEvaluated(3, ((tasks["segmentation"].metric, 0.5),), best=True)
    last = on_terminal(START, ValidationProgress(0, 8), ValidationProgress(7, 8), scores).splitlines()[-1]
    assert "validating" not in last
    text = on_terminal(CheckProgress(0, 8), CheckProgress(7, 8), CheckProgress(8, 8), START)
    last = [line for line in text.splitlines() if line][-1]
    assert "training" in last and "checking" not in last


def test_without_a_terminal_there_are_plain_lines_and_no_bar():
    console = Console(file=io.StringIO(), width=80)
    with TrainingDisplay(console) as show:
        for event in (START, STEP, ValidationProgress(3, 8), Note("so it is")):
            show(event)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3 and lines[1].startswith("step 11250 of 22500: loss 0.4321, ") and lines[2] == "so it is"


def test_a_bar_of_files_fits_80_columns_and_shows_rate_and_remaining_time(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("predicting", 1000) as update:
        for _ in range(10):
            time.sleep(0.02)
            update(advance=1, description="a-name-of-24-characters.")
    lines = CODES.sub("", capsys.readouterr().err)
    last = lines[lines.rindex("a-name-of-24") :]
    assert re.search(r" 10/1000 [1-9]\d\.\d/s 0:00:00 left 0:00:\d\d", last) and len(last.rstrip()) <= 80, last


def test_the_bar_of_a_grid_fits_80_columns_and_shows_rate_and_remaining_time(clock, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with phase_progress() as update:
        for k in range(10):
            update(1_000_000 + 20 * k, 3_600_000, "114 of 120 runs")
            clock.now += 60  # the rate of slow runs is known too
    lines = CODES.sub("", capsys.readouterr().err).replace("\r", "\n").splitlines()
    last = next(line for line in reversed(lines) if "runs" in line)
    assert re.search(
        r"114 of 120 runs \S+ 1000180/3600000 3\.0 s each \d:\d\d:\d\d left [\d :a-z,]+$", last.rstrip()
    ), last
    assert len(last.rstrip()) <= 80


def test_of_a_line_that_is_too_long_the_name_is_cut(clock, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("a " * 60, 1000) as update:
        for _ in range(10):
            clock.now += 1
            update(advance=1)
    lines = CODES.sub("", capsys.readouterr().err).replace("\r", "\n").splitlines()
    (last,) = {line for line in lines if " 10/1000 " in line}
    assert re.search(r"a…\s+\S+\s+10/1000 1\.0/s 0:00:10 left 0:16:30$", last) and len(last) <= 80, last


def test_without_a_terminal_a_bar_prints_a_line_now_and_then(clock, capsys):
    with progress_bar("reading\x1b", 9) as update:
        for _ in range(7):
            clock.now += 10
            update(advance=1)
    assert capsys.readouterr().err.splitlines() == [
        "reading\\x1b 3/9 10.0 s each 0:00:30 left 0:01:00",
        "reading\\x1b 6/9 10.0 s each 0:01:00 left 0:00:30",
    ]


def test_names_of_files_are_shown_as_they_are(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("predicting", 1) as update:
        update(advance=1, description="a[/bold].png")
    assert "a[/bold].png" in capsys.readouterr().err
    assert r"\x1b]0;title\x07" in on_terminal(Note("\x1b]0;title\x07"))


@pytest.fixture
def jupyter(monkeypatch):
    """What IPython displays; IPython is a stand-in, and ipywidgets is missing."""
    shown = []
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    monkeypatch.setattr(display, "find_spec", lambda name: None)
    return shown


def test_without_ipywidgets_a_notebook_shows_lines(jupyter):
    with TrainingDisplay(Console(force_jupyter=True)) as show:
        for event in (START, STEP):
            show(event)
    lines = [each.text.strip() for each in jupyter]
    assert len(lines) == 2 and lines[1].startswith("step 11250 of 22500: loss 0.4321, ")


def test_with_ipywidgets_a_notebook_shows_a_bar(jupyter, monkeypatch):
    drawn = []

    class Output:
        """A widget that is replaced with what is displayed inside `with`."""

        def __enter__(self):
            self.before = len(jupyter)

        def __exit__(self, *_):
            drawn.extend(jupyter[self.before :])

        def clear_output(self, wait):
            pass

        def close(self):
            drawn.append("closed")

    monkeypatch.setitem(sys.modules, "ipywidgets", SimpleNamespace(Output=Output))
    monkeypatch.setattr(display, "find_spec", lambda name: name == "ipywidgets" or None)
    with TrainingDisplay(Console(force_jupyter=True)) as show:
        for event in (START, STEP):
            show(event)
        show.bar.refresh()
    last = CODES.sub("", drawn[-2].text)
    assert drawn[-1] == "closed" and re.match(
        "training ━.* 11250/22500 loss 0.4321, 1043.2 images/s, 5:33:19 left", last
    )
    assert not any(each.text.startswith("step ") for each in jupyter if hasattr(each, "text"))


def test_hb_train_shows_a_bar_on_a_terminal_and_nothing_in_a_file(monkeypatch, tmp_path, capsys):
    hb.train(small_run.small("steps=2"), tmp_path / "quiet", accelerator="cpu")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    hb.train(small_run.small("steps=2"), tmp_path / "shown", accelerator="cpu")
    assert "images to train on" in capsys.readouterr().err
