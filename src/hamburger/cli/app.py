"""The commands of `ham`; other installed packages add theirs through the entry point group `hamburger.commands`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated

import typer

import hamburger
from hamburger.cli import compare, data, evaluate, explorer, export, gan, listing, predict, train, tune

LAB_COMMANDS = (
    "ablate",
    "angles",
    "bench",
    "claims",
    "data prepare",
    "feature-maps",
    "gan fid",
    "gan grid",
    "gan report",
    "propositions",
    "recover",
)  # of hamburger-lab

app = typer.Typer(name="ham", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"hamburger {hamburger.__version__}")
        raise typer.Exit


@app.callback()
def ham(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Global context by matrix decomposition instead of attention."""


app.command("demo")(compare.demo)
app.command("compare")(compare.compare)
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("eval")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("report")(compare.report)
app.command("app")(explorer.explore)
app.command("export")(export.export)
app.command("list")(listing.list_names)
app.add_typer(data.app, name="data")
app.add_typer(gan.app, name="gan")
for entry in entry_points(group="hamburger.commands"):
    entry.load()(app)


def find_missing_lab_command(words: Sequence[str]) -> str | None:
    """The command that the words begin with, if only hamburger-lab has it and that package is not installed."""
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    known |= {f"gan {command.name}" for command in gan.app.registered_commands}
    known |= {f"data {group.name}" for group in data.app.registered_groups}
    typed = " ".join([*words[:2], ""])
    return next((name for name in LAB_COMMANDS if name not in known and typed.startswith(f"{name} ")), None)
