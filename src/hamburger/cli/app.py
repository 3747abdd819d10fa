"""The commands of `ham`; other installed packages add theirs through the entry point group `hamburger.commands`."""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

from hamburger.cli import compare, data, demo, evaluate, export, gan, listing, predict, report, train

LAB_COMMANDS = ("ablate", "bench", "claims", "pictures", "propositions", "recover")  # of hamburger-lab

app = typer.Typer(
    name="ham",
    help="Global context by matrix decomposition instead of attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("compare")(compare.compare)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("list")(listing.listing)
app.add_typer(data.app, name="data")
app.add_typer(gan.app, name="gan")
for entry in entry_points(group="hamburger.commands"):
    entry.load()(app)


def needs_lab(command: str) -> bool:
    """Whether `ham COMMAND` exists only with hamburger-lab, and that package is not installed."""
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    return command in LAB_COMMANDS and command not in known
