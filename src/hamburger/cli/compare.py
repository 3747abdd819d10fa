"""`ham compare`: one recipe with several contexts and seeds; progress and table of a grid of runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.files import write_json_lines
from hamburger.tasks.sweep import Cell, GridError, finished, rows, run_grid

if TYPE_CHECKING:
    from rich.table import Table


def compare(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list recipes`")],
    out: Annotated[Path, typer.Option(help="a folder for the runs, their logs and report.html")],
    contexts: Annotated[
        str, typer.Option(help="with commas; also baseline (or none), breads (no ham), sa-flash and sa-materialised")
    ] = "baseline,nmf",
    seeds: Annotated[str, typer.Option(help="with commas")] = "0,1,2",
    data: Annotated[Path | None, typer.Option(help="the data folder")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="an override such as steps=500")] = None,
    jobs: Annotated[int, typer.Option(help="runs at once")] = 1,
    json: Annotated[Path | None, typer.Option(help="also write the rows here, one JSON object per line")] = None,
    report: Annotated[bool, typer.Option(help="write report.html")] = True,
) -> None:
    """Train every context with every seed; skip what is finished, resume what broke off."""
    from hamburger.cli.output import numbers, words
    from hamburger.files import check_writable
    from hamburger.tasks.compare import variants
    from hamburger.tasks.sweep import cells

    if json is not None:
        check_writable(json)
    grid = cells(recipe, variants(words(contexts)), numbers(seeds, "compare", "seeds"), settings or ())
    show_grid(grid, out, data=data, jobs=jobs, report=report, json=json)


# ----------------------------------------------------------------------------------------------------------------------
# A grid of runs on the terminal: a bar while it runs, a table and a page at the end.


def show_grid(
    grid: Sequence[Cell],
    out: Path,
    *,
    data: Path | None = None,
    jobs: int = 1,
    report: bool = True,
    json: Path | None = None,
) -> list[dict[str, Any]]:
    """Run it and show it; the rows are also written to `json`, each as its run ends. What failed is told after what is
    finished.
    """
    from rich.console import Console

    def keep(_: Cell) -> None:
        if json is not None:
            write_json_lines(json, rows(grid, out))

    failure = None
    with grid_bar(len(grid)) as progress:
        try:
            run_grid(grid, out, data=data, jobs=jobs, progress=progress, done=keep)
        except GridError as failed:  # what is finished is shown all the same
            failure = failed
    found, console = rows(grid, out), Console()
    if found:
        console.print(table(found))
    if report and found:
        from hamburger.report.page import write_report

        page = out / "report.html"
        write_report([out / cell.name for cell in grid if finished(cell, out)], page, data_root=data)
        console.print(f"wrote {page}", soft_wrap=True)
    if json is not None:
        write_json_lines(json, found)
    if failure is not None:
        raise failure
    return found


@contextmanager
def grid_bar(runs: int) -> Iterator[Callable[[int, dict[str, int]], object]]:
    """How many runs are done, and where the others are."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=runs)

        def progress(done: int, steps: dict[str, int]) -> None:
            running = ", ".join(f"{name} step {step}" for name, step in steps.items())
            bar.update(task, completed=done, description=running or "runs")

        yield progress


def table(found: Sequence[dict[str, Any]]) -> Table:
    """The score of the task, mean and standard deviation over the seeds, best last."""
    from rich.table import Table

    from hamburger.tasks.recipes import kind_named

    first = found[0]
    scored = kind_named(first.get("task"), "compare: a row").score
    made = Table(
        title=f"{first['recipe']}: validation {scored.words}, {first['protocol']}",
        caption=f"{first['hardware']}, torch {first['torch']}, {first['steps']} steps; spread over seeds",
    )
    made.add_column("context")
    for heading in (scored.heading, "spread", "seeds", "images/s", "peak MB"):
        made.add_column(heading, justify="right")
    by_context: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        by_context.setdefault(row["context"], []).append(row)
    means = {name: statistics.mean(row[scored.name] for row in own) for name, own in by_context.items()}
    digits = 1 if scored.scale > 1 else 3
    for context in sorted(means, key=means.__getitem__, reverse=not scored.higher):
        own = by_context[context]
        scores = [row[scored.name] for row in own]
        spread = scored.shown(statistics.stdev(scores), digits) if len(scores) > 1 else ""
        speeds = [row["images_per_s"] for row in own if row["images_per_s"]]
        speed = f"{statistics.median(speeds):.0f}" if speeds else ""
        peak = max((row["peak_mb"] or 0 for row in own), default=0)
        made.add_row(context, scored.shown(means[context], digits), spread, str(len(own)), speed, f"{peak:.0f}" or "")
    return made
