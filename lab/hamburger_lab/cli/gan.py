"""`ham gan fid`: distances to real images. `gan grid`: compare contexts and seeds. `gan report`: a page about a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.gan import TrainedRun, Truncation
from hamburger.cli.output import DataFolder, Device, suggest

if TYPE_CHECKING:
    from rich.table import Table

Extractor = Annotated[str, typer.Option(help="inception (FID's), or package.module:function")]
Weights = Annotated[Path | None, typer.Option(help="the extractor's weights; default: downloaded")]
Size = Annotated[int | None, typer.Option(help="input size of the extractor in pixels; default: its own")]
Samples = Annotated[int, typer.Option(help="images to generate")]
Compared = Annotated[int, typer.Option(help="images of each set for kernel distance, precision and recall")]


def fid(
    run: TrainedRun,
    data: DataFolder = None,
    extractor: Extractor = "inception",
    weights: Weights = None,
    samples: Samples = 50_000,
    compared: Compared = 10_000,
    split: Annotated[str | None, typer.Option(help="split of the real images; default: that of the training")] = None,
    size: Size = None,
    truncation: Truncation = None,
    seed: Annotated[int, typer.Option(help="seed of the generated images")] = 0,
    batch: Annotated[int, typer.Option(help="batch size")] = 256,
    cache: Annotated[Path | None, typer.Option(help="folder of cached statistics of real images")] = None,
    device: Device = "auto",
    json: Annotated[Path | None, typer.Option(help="write the result to this file as a JSON object")] = None,
) -> None:
    """Print Frechet distance, kernel distance, precision and recall, labelled with their feature extractor."""
    from hamburger.classification.data.base import load_images, open_source
    from hamburger.cli.output import print_note
    from hamburger.devices import pick_device
    from hamburger.environment import describe_environment
    from hamburger.errors import CheckpointError, shorten
    from hamburger.files import check_writable, encode_json, write_atomically
    from hamburger.generation.weights import open_generator
    from hamburger.training.recipe import check_data_options
    from hamburger_lab.gan_grid import image_progress, warnings_as_notes
    from hamburger_lab.gan_metrics.evaluate import MeasureSettings, measure_generator, measure_real
    from hamburger_lab.gan_metrics.extractors import create_extractor

    measure = MeasureSettings(samples=samples, compared=compared, seed=seed, truncation=truncation, batch=batch)
    if json is not None:
        check_writable(json)
    on = pick_device(device)
    generator, info, path = open_generator(run)
    if not {"data", "split"} <= info.extra.keys():
        raise CheckpointError(
            f"gan fid: {path} does not say which images it was trained on, unlike files of `ham gan train`; use "
            f"hamburger_lab.gan_metrics.evaluate.measure_generator in Python instead"
        )
    network = create_extractor(extractor, weights, size=size)
    options = info.extra.get("data_options", {})
    if not isinstance(options, dict):
        raise CheckpointError(f"gan fid: the data_options of {path} must be a mapping (got {shorten(options)})")
    check_data_options(f"gan fid: {path}", options)
    source = open_source(
        str(info.extra["data"]),
        split or str(info.extra["split"]),
        root=data,
        **{**options, "size": generator.resolution},
    )
    images = load_images(source, note=print_note)
    with warnings_as_notes(), image_progress() as progress:
        real = measure_real(images, network, measure, device=on, cache=cache, progress=progress)
        distances = measure_generator(generator, real, network, measure, device=on, progress=progress)
    typer.echo(str(distances))
    if json is not None:
        values = {
            "weights": str(path),
            **{key: info.extra.get(key) for key in ("recipe", "seed", "step")},
            "data": images.name,
            "split": images.split,
            "data_sha256": images.digest,
            "samples_seed": seed,
            "truncation": truncation,
            **distances.row(),
            "compared_images": min(compared, samples, len(images)),
            **describe_environment(on.type),
        }
        write_atomically(json, (encode_json(values) + "\n").encode())
        typer.echo(f"wrote {json}")
    suggest(f"ham gan report {path.parent}")


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
    from hamburger.devices import pick_device
    from hamburger.tasks.sweep import cells
    from hamburger_lab.gan_grid import GanCell, choose_results_file, gan_variants, open_extractor, run_measured_grid
    from hamburger_lab.gan_metrics.evaluate import MeasureSettings

    chosen_device = pick_device(device)
    network = open_extractor(extractor, weights, size)
    measure = MeasureSettings(samples=samples, compared=compared)
    variants, seed_list = gan_variants(parse_names(contexts)), parse_ints(seeds, "gan grid", "seeds")
    planned = cells(recipe, variants, seed_list, settings or (), cell_class=GanCell, call="gan grid")
    rows = run_measured_grid(
        planned, out, data=data, jobs=jobs, extractor=network, measure=measure, device=chosen_device, json=json
    )
    Console().print(build_table(rows))
    typer.echo(f"rows in {json or choose_results_file(rows[0]['data'], rows[0])}; runs and logs in {out}")
    suggest(f"ham gan report {out / planned[0].name}")


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
    suggest(f"ham gan sample {run} --out samples")
