"""`ham gan grid`: compare GANs of several contexts and seeds. `ham gan report`: one page about a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.gan import Compared, Samples, Size, Weights
from hamburger.cli.output import Device

if TYPE_CHECKING:
    from rich.table import Table


def grid(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list gan-recipes`")],
    out: Annotated[Path, typer.Option(help="folder for the runs and their logs")],
    contexts: Annotated[str, typer.Option(help="comma-separated")] = "none,sagan,ylg,hamgan,efficient",
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    data: Annotated[Path | None, typer.Option(help="the data folder")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="override a field, such as steps=500; may be repeated")
    ] = None,
    jobs: Annotated[int, typer.Option(help="number of runs at the same time")] = 1,
    extractor: Annotated[
        str, typer.Option(help="inception, efficientnet-lite0, or package.module:function")
    ] = "inception",
    weights: Weights = None,
    size: Size = None,
    samples: Samples = 50_000,
    compared: Compared = 10_000,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for the distances")] = "auto",
    json: Annotated[
        Path | None, typer.Option(help="append the rows to this file; default: results/gan_DATA_HARDWARE.jsonl")
    ] = None,
) -> None:
    """Train every context with every seed, measure each run and append its row; skip finished runs."""
    from rich.console import Console

    from hamburger.cli.output import parse_ints, parse_names
    from hamburger.generation.evaluate import MeasureSettings
    from hamburger.tasks.sweep import cells
    from hamburger.tensors import pick_device
    from hamburger_lab.gan_grid import GanCell, gan_variants, open_extractor, run_measured_grid

    chosen_device = pick_device(device)
    network = open_extractor(extractor, weights, size)
    measure = MeasureSettings(samples=samples, compared=compared)
    variants, seed_list = gan_variants(parse_names(contexts)), parse_ints(seeds, "gan grid", "seeds")
    planned = cells(recipe, variants, seed_list, settings or (), cell_class=GanCell, call="gan grid")
    rows = run_measured_grid(
        planned, out, data=data, jobs=jobs, extractor=network, measure=measure, device=chosen_device, json=json
    )
    Console().print(build_table(rows))


def build_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A table of means over the seeds, best context last."""
    from rich.markup import escape
    from rich.table import Table

    first = rows[0]
    table = Table(
        title=escape(f"{first['recipe']}: {first['name']}, {first['fake_images']:,} generated images"),
        caption=escape(f"{first['hardware']}, torch {first['torch']}, {first['steps']} steps; by {first['extractor']}"),
    )
    table.add_column("context")
    for heading in ("Frechet", "spread", "kernel x 1000", "precision", "recall", "seeds", "ms/step", "peak MB"):
        table.add_column(heading, justify="right")
    by_context: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_context.setdefault(row["context"], []).append(row)

    def mean(runs: list[dict[str, Any]], field: str) -> float:
        return statistics.mean(run[field] for run in runs)

    for context, runs in sorted(by_context.items(), key=lambda item: -mean(item[1], "frechet")):
        spread = f"{statistics.stdev(run['frechet'] for run in runs):.2f}" if len(runs) > 1 else ""
        times = [1000 * run["seconds_per_step"] for run in runs if run["seconds_per_step"]]
        table.add_row(
            context,
            f"{mean(runs, 'frechet'):.2f}",
            spread,
            f"{1000 * mean(runs, 'kid'):.2f}",
            f"{mean(runs, 'precision'):.3f}",
            f"{mean(runs, 'recall'):.3f}",
            str(len(runs)),
            f"{statistics.median(times):.1f}" if times else "",
            f"{max(run['peak_mb'] for run in runs):.0f}",
        )
    return table


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder of `ham gan train`")],
    out: Annotated[Path | None, typer.Option(help="the file to write; default: report.html in the run folder")] = None,
    device: Device = "auto",
) -> None:
    """Write a page about a run: curves, samples over time, atoms of the ham on generated images."""
    from hamburger_lab.gan_page import write_gan_report

    typer.echo(f"wrote {write_gan_report(run, out or run / 'report.html', device=device)}")
