"""`ham ablate`: run one of the paper's ablations on a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def ablate(
    name: Annotated[str, typer.Argument(help="a name of `ham list ablations`, or several, comma-separated")],
    out: Annotated[
        Path, typer.Option(help="folder for the runs and their logs; grids in the same folder share trainings")
    ],
    recipe: Annotated[str, typer.Option(help="a name of `ham list recipes`")] = "patchwork",
    data: Annotated[Path | None, typer.Option(help="the data folder; embedded sets need none")] = None,
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    cells: Annotated[str, typer.Option(help="only these cells, comma-separated; default: all")] = "",
    jobs: Annotated[int, typer.Option(help="number of concurrent processes on one device")] = 1,
    settings: Annotated[list[str] | None, typer.Option("--set", help="an override for all cells")] = None,
    json: Annotated[
        str | None,
        typer.Option(
            help="append each row to this file when its run ends, one JSON object per line; {grid} is replaced by "
            "the name of the grid, as in results/ablation_{grid}_<data>_<hardware>.jsonl"
        ),
    ] = None,
    csv: Annotated[str | None, typer.Option(help="write all rows as CSV at the end; {grid} as above")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="print the cells and their commands, run nothing")] = False,
) -> None:
    """Train and evaluate every cell with every seed; skip finished runs and resume interrupted ones."""
    from rich.console import Console

    from hamburger.cli.output import parse_ints, parse_names, phase_progress, suggest
    from hamburger.errors import OptionError
    from hamburger.files import check_writable
    from hamburger.tasks.sweep import run_grid
    from hamburger_lab.ablations.plan import GRID_FIELD, AblationPlan
    from hamburger_lab.rows import write_csv

    ablation_plan = AblationPlan.create(
        parse_names(name),
        recipe,
        out,
        seeds=parse_ints(seeds, "ablate", "seeds"),
        settings=settings or (),
        only=parse_names(cells),
        json=json,
    )
    if plan:
        import shlex

        for cell, done in ablation_plan.states():
            typer.echo(f"{cell.name}: {'finished' if done else shlex.join(['ham', *cell.command(out, data)[3:]])}")
        return
    tables = {grid: Path(csv.replace(GRID_FIELD, grid)) for grid in parse_names(name)} if csv is not None else {}
    if len(set(tables.values())) < len(tables):
        raise OptionError(
            f"ablate: several grids need several files (got --csv {csv}); put {GRID_FIELD} where the name belongs"
        )
    for path in tables.values():
        check_writable(path)
    ablation_plan.begin()
    queue = ablation_plan.queue
    with phase_progress() as progress:
        run_grid(queue, out, data=data, jobs=jobs, progress=progress, done=ablation_plan.write_finished, call="ablate")
    for grid, rows in zip(parse_names(name), ablation_plan.rows(), strict=True):
        Console().print(table(rows))
        if grid in tables:
            write_csv(tables[grid], rows)
            typer.echo(f"wrote {tables[grid]}")
    typer.echo(f"runs and logs in {out}" if json is None else f"runs and logs in {out}, rows in {json}")
    suggest(f"ham report {out}")


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the score of each cell over its seeds, in the order of the grid."""
    from rich.table import Table

    from hamburger.report.study import summarise
    from hamburger.tasks import task_named

    first = rows[0]
    metric = task_named(first.get("task"), "ablate: a row").metric
    table = Table(
        title=f"{first['ablation']} from {first['recipe']}: validation {metric.label}, {first['protocol']}",
        caption=f"{first['hardware']}, torch {first['torch']}, {first['steps']} steps; spread over seeds",
    )
    table.add_column("cell")
    for heading in (metric.heading, "spread", "loss", "seconds", "seeds"):
        table.add_column(heading, justify="right")
    for cell in dict.fromkeys(row["cell"] for row in rows):
        cell_rows = [row for row in rows if row["cell"] == cell]
        score = summarise([metric.scale * row[metric.name] for row in cell_rows])
        losses = [row["loss"] for row in cell_rows if row["loss"] is not None]
        seconds = summarise([row["seconds"] for row in cell_rows])
        table.add_row(
            cell,
            f"{score.mean:.2f}",
            "" if score.deviation is None else f"{score.deviation:.2f}",
            f"{summarise(losses).mean:.3f}" if losses else "",
            f"{seconds.mean:.0f}",
            str(score.n),
        )
    return table
