"""`ham tune`: choose the context of a recipe within a time budget."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from hamburger.cli.output import (
    DataFolder,
    Seed,
    Settings,
    parse_ints,
    parse_names,
    phase_progress,
    print_note,
    suggest,
)
from hamburger.tasks import tune as tuning

if TYPE_CHECKING:
    from rich.table import Table


def tune(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list recipes`, or a recipe.json")],
    out: Annotated[Path, typer.Option(help="folder for the runs, summary.jsonl and recipe.json")],
    data: DataFolder = None,
    minutes: Annotated[float, typer.Option(help="time budget")] = 30,
    candidates: Annotated[
        str, typer.Option(help="comma-separated hams and other contexts; `none` always takes part")
    ] = ",".join(tuning.HAMS),
    ranks: Annotated[
        str | None, typer.Option(help="of the hams, comma-separated; default: the network's default rank, and twice it")
    ] = None,
    ham_steps: Annotated[str, typer.Option(help="K of the hams, comma-separated")] = ",".join(
        map(str, tuning.HAM_STEPS)
    ),
    inits: Annotated[str, typer.Option(help="initial dictionaries of the hams, comma-separated")] = ",".join(
        tuning.INITS
    ),
    seed: Seed = None,
    settings: Settings = None,
) -> None:
    """Choose ham, rank, steps and init for a recipe within a time budget; repeat an interrupted call to continue."""
    from rich.console import Console

    with phase_progress() as progress:
        result = tuning.tune(
            recipe,
            out,
            data=data,
            minutes=minutes,
            settings=settings or (),
            seed=seed,
            names=parse_names(candidates),
            ranks=() if ranks is None else parse_ints(ranks, "tune", "ranks"),
            ham_steps=parse_ints(ham_steps, "tune", "ham steps"),
            inits=parse_names(inits),
            progress=progress,
            note=print_note,
        )
    Console().print(summary_table(result))
    typer.echo(f"note: {result.verdict}")
    typer.echo(f"wrote {result.recipe}")
    suggest(f"ham train {result.recipe} --run RUN{'' if data is None else f' --data {data}'}")


def summary_table(result: tuning.Tuning) -> Table:
    """The last rung of every candidate with its mean score, best last; `summary.jsonl` has every run."""
    from rich.table import Table

    metric = result.metric
    last: dict[str, list[dict[str, object]]] = {}
    for row in result.rows:
        runs = last.setdefault(row["candidate"], [])
        last[row["candidate"]] = [*(run for run in runs if run["rung"] == row["rung"]), row]
    lines = []
    for name, runs in last.items():
        scores = [float(str(run["score"])) for run in runs if run["score"] is not None]
        mean = fmean(scores) if len(scores) == len(runs) else None
        seconds = sum(float(str(run["seconds"])) for run in runs if run["seconds"] is not None)
        order = float("-inf") if mean is None else mean if metric.higher else -mean
        cells = [name, *(str(runs[0][key]) for key in ("rung", "steps")), str(len(runs))]
        lines.append(
            (runs[0]["rung"], order, [*cells, "failed" if mean is None else metric.format(mean), f"{seconds:.0f}"])
        )
    table = Table(title=f"validation {metric.label}, best last")
    for number, heading in enumerate(("candidate", "rung", "steps", "seeds", metric.heading, "seconds")):
        table.add_column(heading, justify="right" if number else "left")
    for _, _, texts in sorted(lines, key=lambda line: line[:2]):
        table.add_row(*texts)
    return table
