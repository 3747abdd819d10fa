"""`ham compare` and `ham demo`: train a recipe with several contexts and seeds. `ham report`: a page about runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.output import (
    DataFolder,
    Device,
    Jobs,
    Seeds,
    Settings,
    parse_ints,
    parse_names,
    phase_progress,
    suggest,
)
from hamburger.errors import show
from hamburger.files import is_number, write_json_lines
from hamburger.tasks import task_of
from hamburger.tasks.sweep import Cell, GridError, cells, finished, rows, run_grid, variants
from hamburger.training.run_folder import BEST

if TYPE_CHECKING:
    from rich.table import Table

    from hamburger.report.html import Markup

DEMO_RECIPES = ("patchwork", "patchwork-glyphs")


def compare(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list recipes`")],
    out: Annotated[Path, typer.Option(help="folder for the runs, their logs and report.html")],
    contexts: Annotated[
        str,
        typer.Option(help="comma-separated; also baseline (or none), breads (no ham), sa-flash and sa-materialised"),
    ] = "baseline,nmf",
    seeds: Seeds = "0,1,2",
    data: DataFolder = None,
    settings: Settings = None,
    jobs: Jobs = 1,
    json: Annotated[Path | None, typer.Option(help="write the rows to this file, one JSON object per line")] = None,
    report: Annotated[bool, typer.Option(help="write report.html")] = True,
) -> None:
    """Train every context with every seed; skip finished runs, resume interrupted ones."""
    from hamburger.files import check_writable

    if json is not None:
        check_writable(json)
    seed_list = parse_ints(seeds, "compare", "seeds")
    grid: list[Cell] = cells(recipe, variants(parse_names(contexts)), seed_list, settings or ())
    run_and_show_grid(grid, out, data=data, jobs=jobs, report=report, json=json)
    suggest(f"ham predict {out / grid[-1].name} IMAGE... --out predictions")


def demo(
    out: Annotated[Path, typer.Option(help="folder for the runs and report.html")] = Path("runs/demo"),
    recipe: Annotated[str, typer.Option(help=f"one of: {', '.join(DEMO_RECIPES)}")] = "patchwork",
    contexts: Annotated[str, typer.Option(help="comma-separated, as in `ham compare`")] = "baseline,nmf,cd,sa",
    seeds: Seeds = "0,1",
    steps: Annotated[int | None, typer.Option(help="training steps; default: the recipe's")] = None,
    jobs: Jobs = 2,
    weights: Annotated[
        Path | None, typer.Option(help="weights that label the photos; default: the first of `ham list weights`")
    ] = None,
) -> None:
    """Label three photos, train HamNet with several contexts on generated scenes, and write one page about both."""
    from hamburger.app.photos import render_photos
    from hamburger.errors import check_choice
    from hamburger.inference.find_weights import list_weights

    check_choice("demo", "recipe", recipe, DEMO_RECIPES)
    shipped = list_weights()
    named = weights or (Path(shipped[0]) if shipped else None)
    intro = None if named is None else render_photos(named)
    settings = [] if steps is None else [f"steps={steps}"]
    seed_list = parse_ints(seeds, "demo", "seeds")
    grid: list[Cell] = cells(recipe, variants(parse_names(contexts), call="demo"), seed_list, settings, call="demo")
    run_and_show_grid(grid, out, jobs=jobs, call="demo", intro=intro)
    start = "" if shipped else " --set start=none --set model.pretrained=timm"
    suggest(f"ham train folder-cpu --run runs/mine --data DIR{start} (your own photos)")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or folders of run folders")],
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("report.html"),
    data: Annotated[Path | None, typer.Option(help="data folder, to show images")] = None,
    device: Device = "auto",
) -> None:
    """Compare training runs on one page: scores over seeds, curves, predictions, atoms, spectra."""
    from hamburger.report.page import write_report

    with phase_progress() as progress:
        write_report(runs, out, data, device=device, progress=progress)
    typer.echo(f"wrote {out}")
    weights = (path for run in runs for path in (run / BEST, *sorted(run.glob(f"*/{BEST}"))) if path.exists())
    trained = next((path.parent for path in weights), "RUN")
    suggest(f"ham predict {trained} IMAGE... --out predictions")


def run_and_show_grid(
    grid: Sequence[Cell],
    out: Path,
    *,
    data: Path | None = None,
    jobs: int = 1,
    report: bool = True,
    json: Path | None = None,
    call: str = "compare",
    intro: Markup | None = None,
) -> None:
    """Run the grid with a progress bar, print a table, write a report.

    `json` is rewritten whenever a run ends, `intro` begins the report. A failed run raises after the finished ones are
    shown.
    """
    from rich.console import Console

    def save_rows() -> None:
        if json is not None:
            write_json_lines(json, rows(grid, out))

    failure = None
    with phase_progress() as progress:
        try:
            run_grid(grid, out, data=data, jobs=jobs, progress=progress, done=lambda _: save_rows(), call=call)
        except GridError as failed:  # show the finished runs first
            failure = failed
    save_rows()
    if json is not None:
        typer.echo(f"wrote {json}")
    finished_rows = rows(grid, out, task_of(grid[0].resolved()))
    if finished_rows:
        Console().print(comparison_table(finished_rows))
        for line in describe_rows(finished_rows):
            typer.echo(f"note: {line}")
    if report and finished_rows:
        from hamburger.report.page import write_report

        folders = [out / cell.name for cell in grid if finished(cell, out)]
        with phase_progress() as progress:
            page = write_report(folders, out / "report.html", data, intro=intro, progress=progress)
        typer.echo(f"wrote {page}")
    if failure is not None:
        raise failure


def describe_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences about runs that predict a single class."""
    from hamburger.report.study import describe_collapses
    from hamburger.tasks import task_named

    names = dict.fromkeys(row["context"] for row in rows)
    groups = {name: [row for row in rows if row["context"] == name] for name in names}
    return describe_collapses(task_named(rows[0].get("task"), "compare: a row"), groups)


def comparison_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The task's score per context, mean and standard deviation over seeds, best last."""
    from rich.markup import escape
    from rich.table import Table

    from hamburger.report.study import summarise
    from hamburger.tasks import task_named

    first = rows[0]
    metric = task_named(first.get("task"), "compare: a row").metric
    shown = {name: escape(show(first.get(name))) for name in ("recipe", "protocol", "hardware", "torch", "steps")}
    table = Table(
        title=f"{shown['recipe']}: validation {metric.label}, {shown['protocol']}",
        caption=f"{shown['hardware']}, torch {shown['torch']}, {shown['steps']} steps; spread over seeds",
    )
    table.add_column("context")
    for heading in (metric.heading, "spread", "seeds", "images/s", "peak MB"):
        table.add_column(heading, justify="right")
    by_context: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_context.setdefault(row["context"], []).append(row)
    summaries = {context: summarise([row[metric.name] for row in runs]) for context, runs in by_context.items()}
    digits = 1 if metric.scale > 1 else 3
    for context, summary in sorted(summaries.items(), key=lambda item: item[1].mean, reverse=not metric.higher):
        runs = by_context[context]
        speeds = [row["images_per_s"] for row in runs if is_number(row.get("images_per_s"))]
        memory = [row["peak_mb"] for row in runs if is_number(row.get("peak_mb"))]
        table.add_row(
            context,
            metric.format(summary.mean, digits),
            "" if summary.deviation is None else metric.format(summary.deviation, digits),
            str(summary.n),
            f"{median(speeds):.0f}" if speeds else "",
            f"{max(memory, default=0):.0f}",
        )
    return table
