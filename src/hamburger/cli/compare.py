"""`ham compare`: train one recipe with several contexts and seeds; show progress and a table."""

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
    out: Annotated[Path, typer.Option(help="folder for the runs, their logs and report.html")],
    contexts: Annotated[
        str,
        typer.Option(help="comma-separated; also baseline (or none), breads (no ham), sa-flash and sa-materialised"),
    ] = "baseline,nmf",
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    data: Annotated[Path | None, typer.Option(help="the data folder")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="override a field, such as steps=500; may be repeated")
    ] = None,
    jobs: Annotated[int, typer.Option(help="number of runs at the same time")] = 1,
    json: Annotated[Path | None, typer.Option(help="write the rows to this file, one JSON object per line")] = None,
    report: Annotated[bool, typer.Option(help="write report.html")] = True,
) -> None:
    """Train every context with every seed; skip finished runs, resume interrupted ones."""
    from hamburger.cli.output import parse_ints, parse_names
    from hamburger.files import check_writable
    from hamburger.tasks.sweep import cells, variants

    if json is not None:
        check_writable(json)
    grid: list[Cell] = cells(
        recipe, variants(parse_names(contexts)), parse_ints(seeds, "compare", "seeds"), settings or ()
    )
    run_and_show_grid(grid, out, data=data, jobs=jobs, report=report, json=json)


def run_and_show_grid(
    grid: Sequence[Cell],
    out: Path,
    *,
    data: Path | None = None,
    jobs: int = 1,
    report: bool = True,
    json: Path | None = None,
) -> list[dict[str, Any]]:
    """Run the grid with a progress bar, print a table, write a report; return the rows.

    `json` is rewritten whenever a run ends. A failed run raises after the finished ones are shown.
    """
    from rich.console import Console

    def save_rows(_: Cell) -> None:
        if json is not None:
            write_json_lines(json, rows(grid, out))

    failure = None
    with grid_progress(len(grid)) as progress:
        try:
            run_grid(grid, out, data=data, jobs=jobs, progress=progress, done=save_rows)
        except GridError as failed:  # show the finished runs first
            failure = failed
    finished_rows, console = rows(grid, out), Console()
    if finished_rows:
        console.print(comparison_table(finished_rows))
    if report and finished_rows:
        from hamburger.report.page import write_report

        page = out / "report.html"
        write_report([out / cell.name for cell in grid if finished(cell, out)], page, data_root=data)
        console.print(f"wrote {page}", soft_wrap=True)
    if json is not None:
        write_json_lines(json, finished_rows)
    if failure is not None:
        raise failure
    return finished_rows


@contextmanager
def grid_progress(runs: int) -> Iterator[Callable[[int, dict[str, int]], object]]:
    """A progress bar: finished runs, and the step of each running one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=runs)

        def progress(done: int, steps: dict[str, int]) -> None:
            running = ", ".join(f"{name} step {step}" for name, step in steps.items())
            bar.update(task, completed=done, description=running or "runs")

        yield progress


def comparison_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The task's score per context, mean and standard deviation over seeds, best last."""
    from rich.table import Table

    from hamburger.tasks import task_named

    first = rows[0]
    scored = task_named(first.get("task"), "compare: a row").score
    table = Table(
        title=f"{first['recipe']}: validation {scored.words}, {first['protocol']}",
        caption=f"{first['hardware']}, torch {first['torch']}, {first['steps']} steps; spread over seeds",
    )
    table.add_column("context")
    for heading in (scored.heading, "spread", "seeds", "images/s", "peak MB"):
        table.add_column(heading, justify="right")
    by_context: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_context.setdefault(row["context"], []).append(row)
    means = {name: statistics.mean(row[scored.name] for row in runs) for name, runs in by_context.items()}
    digits = 1 if scored.scale > 1 else 3
    for context in sorted(means, key=means.__getitem__, reverse=not scored.higher):
        runs = by_context[context]
        scores = [row[scored.name] for row in runs]
        spread = scored.shown(statistics.stdev(scores), digits) if len(scores) > 1 else ""
        speeds = [row["images_per_s"] for row in runs if row["images_per_s"]]
        speed = f"{statistics.median(speeds):.0f}" if speeds else ""
        peak = max((row["peak_mb"] or 0 for row in runs), default=0)
        table.add_row(context, scored.shown(means[context], digits), spread, str(len(runs)), speed, f"{peak:.0f}" or "")
    return table
