"""What several commands share: common options, comma-separated values, progress bars and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hamburger.errors import OptionError, printable
from hamburger.files import parse_json
from hamburger.training.display import progress_bar as progress_bar

WEIGHTS_HELP = "a run folder, a .safetensors file, or a name of `ham list weights`"
WeightsPath = Annotated[Path, typer.Argument(metavar="WEIGHTS", help=WEIGHTS_HELP)]
Device = Annotated[str, typer.Option(help="auto, cpu, or the kind of GPU: cuda, mps, xpu")]
Flip = Annotated[bool, typer.Option("--flip", help="average with the mirrored image")]
Window = Annotated[int | None, typer.Option(help="side of a sliding window in pixels; default: none")]
Seeds = Annotated[str, typer.Option(help="comma-separated")]
Jobs = Annotated[int, typer.Option(help="number of runs at the same time")]
RunFolder = Annotated[Path, typer.Option(help="run folder; must not contain another run")]
DataFolder = Annotated[Path | None, typer.Option(help="data folder; generated data sets need none")]
Seed = Annotated[int | None, typer.Option(help="replaces the recipe's seed")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="override a field, such as steps=500; may be repeated")
]
Devices = Annotated[
    int, typer.Option(help="processes on this machine, one per GPU; torchrun starts those of several machines")
]
Resume = Annotated[bool, typer.Option("--resume", help="resume from the last checkpoint in the run folder")]


def parse_names(text: str) -> tuple[str, ...]:
    """Parse `nmf, sa` into names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_ints(text: str, call: str = "bench", option: str = "sizes") -> tuple[int, ...]:
    """Parse `1024,4096` into integers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{call}: {option} must be comma-separated whole numbers (got {text!r})") from None


def parse_floats(text: str, call: str) -> tuple[float, ...]:
    """Parse `0.5,1`, the scales of an evaluation protocol."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{call}: scales must be comma-separated numbers such as 0.5,1,1.5 (got {text!r})") from None


def parse_side(text: str) -> int:
    """Parse the longer side of a resized image; `none` is 0, the image's own size."""
    if text != "none" and not text.isdecimal():
        raise OptionError(f"predict: --side takes a number of pixels, or none to keep the image's size (got {text!r})")
    return 0 if text == "none" else int(text)


def parse_options(texts: Sequence[str] | None) -> dict[str, Any]:
    """Parse each `name=value`; a value that is valid JSON is read as JSON, any other as text."""
    options = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--option takes name=value (got {text!r})")
        try:
            options[name] = parse_json(value)
        except ValueError:
            options[name] = value
    return options


@contextmanager
def phase_progress() -> Iterator[Callable[[int, int, str], object]]:
    """A progress bar that also shows what is done: `progress(done, total, what)` of `run_grid` and `write_report`."""
    with progress_bar("starting") as update:
        yield lambda done, total, what: update(completed=done, total=total, description=what)


def print_note(text: str) -> None:
    typer.echo(f"note: {printable(text)}", err=True)


def suggest(*commands: str) -> None:
    """Print likely next commands."""
    typer.echo(f"next: {', or '.join(commands)}", err=True)
