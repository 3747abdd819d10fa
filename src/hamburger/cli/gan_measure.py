"""`ham gan fid` and `ham gan grid`: distances between generated and real images, for one run or many."""

from __future__ import annotations

import json as json_format
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.compare import grid_progress
from hamburger.cli.output import image_progress, print_note, warnings_as_notes
from hamburger.generation.evaluate import MeasureSettings, measure_generator, measure_real
from hamburger.tasks.sweep import Cell, GanCell, check_data, check_grid, finished, run_grid
from hamburger.tasks.sweep import rows as results
from hamburger.training.recipe import digest

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from hamburger.generation.metrics.extractors import NetworkExtractor


Extractor = Annotated[
    str, typer.Option(help="inception, torch-fidelity, efficientnet-lite0, or package.module:function")
]
Weights = Annotated[Path | None, typer.Option(help="the extractor's weights")]
Size = Annotated[int | None, typer.Option(help="input size of the extractor in pixels; default: its own")]
Samples = Annotated[int, typer.Option(help="images to generate")]
Choice = Annotated[int, typer.Option(help="images of each set for kernel distance, precision and recall")]


def fid(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or its generator.safetensors")],
    data: Annotated[Path | None, typer.Option(help="folder of the real images; not needed for built-in data")] = None,
    extractor: Extractor = "inception",
    weights: Weights = None,
    samples: Samples = 50_000,
    choice: Choice = 10_000,
    split: Annotated[str | None, typer.Option(help="split of the real images; default: that of the training")] = None,
    resizer: Annotated[
        str | None,
        typer.Option(help="bilinear-antialias (default), bilinear or bilinear-tf1; not for torch-fidelity"),
    ] = None,
    size: Size = None,
    other_weights: Annotated[
        bool, typer.Option("--other-weights", help="allow other weights of inception; the result is not called FID")
    ] = False,
    truncation: Annotated[
        float | None, typer.Option(help="largest absolute value in a latent; default: no limit")
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the generated images")] = 0,
    batch: Annotated[int, typer.Option(help="batch size")] = 256,
    cache: Annotated[Path | None, typer.Option(help="folder of cached statistics of real images")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    json: Annotated[Path | None, typer.Option(help="write the result to this file as a JSON object")] = None,
) -> None:
    """Print Frechet distance, kernel distance, precision and recall, labelled with their feature extractor."""
    from hamburger.classification.data.base import load_images, open_source
    from hamburger.environment import Environment
    from hamburger.errors import CheckpointError
    from hamburger.files import check_writable, write_atomically
    from hamburger.generation.metrics.extractors import create_extractor
    from hamburger.generation.weights import open_generator
    from hamburger.segmentation.predict import pick_device

    measure = MeasureSettings(samples=samples, choice=choice, seed=seed, truncation=truncation, batch=batch)
    if json is not None:
        check_writable(json)
    on = pick_device(device)
    generator, info, path = open_generator(run)
    if not {"data", "split"} <= info.extra.keys():
        raise CheckpointError(
            f"gan fid: {path} does not say which images it was trained on, unlike files of `ham gan train`; use "
            f"hamburger.generation.evaluate.measure_generator in Python instead"
        )
    network = create_extractor(extractor, weights, resizer=resizer, size=size, other_weights=other_weights)
    source = open_source(
        str(info.extra["data"]),
        split or str(info.extra["split"]),
        size=generator.resolution,
        root=data,
        **info.extra.get("data_options", {}),
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
            "compared_images": min(choice, samples, len(images)),
            **asdict(Environment.here(on.type)),
        }
        write_atomically(json, (json_format.dumps(values) + "\n").encode())


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
    extractor: Extractor = "inception",
    weights: Weights = None,
    size: Size = None,
    samples: Samples = 50_000,
    choice: Choice = 10_000,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for the distances")] = "auto",
    json: Annotated[
        Path | None, typer.Option(help="append the rows to this file; default: results/gan_DATA_HARDWARE.jsonl")
    ] = None,
) -> None:
    """Train every context with every seed, measure each run and append its row; skip finished runs."""
    from rich.console import Console

    from hamburger.cli.output import parse_ints, parse_names
    from hamburger.generation.metrics.extractors import create_extractor
    from hamburger.generation.recipe import gan_variants
    from hamburger.segmentation.predict import pick_device
    from hamburger.tasks.sweep import GanCell, cells_of

    on = pick_device(device)
    network = create_extractor(extractor, weights, size=size)
    measure = MeasureSettings(samples=samples, choice=choice)
    variants, seed_list = gan_variants(parse_names(contexts)), parse_ints(seeds, "gan grid", "seeds")
    planned = cells_of(GanCell, recipe, variants, seed_list, settings or (), call="gan grid")
    rows = run_measured_grid(
        planned, out, data=data, jobs=jobs, extractor=network, measure=measure, device=on, json=json
    )
    Console().print(build_table(rows))


RESULTS = Path("results")
SAMPLES = "samples.png"


def run_measured_grid(
    planned: Sequence[GanCell],
    out: Path,
    *,
    data: Path | None,
    jobs: int,
    extractor: NetworkExtractor,
    measure: MeasureSettings,
    device: torch.device,
    json: Path | None,
) -> list[dict[str, Any]]:
    """Train all cells, measure each as soon as it is trained, append its row to the file, and return all rows.

    Runs with a row in `json` are not repeated, even if their folders are gone.
    """
    from hamburger.classification.data.base import load_images, open_source
    from hamburger.errors import OptionError
    from hamburger.files import check_writable
    from hamburger.generation.evaluate import append_rows, cached_distances, make_result_row, read_rows
    from hamburger.generation.image_grid import write_png
    from hamburger.generation.metrics.extractors import file_digest
    from hamburger.generation.samples import compare_samples
    from hamburger.generation.weights import GENERATOR, open_generator

    recipe = planned[0].resolved()
    if out.is_file():
        raise OptionError(f"gan grid: --out {out} is a file; give a folder")
    # before any training: the rows can be appended to the existing files
    check_writable(json or RESULTS / "rows.jsonl")
    for path in [json] if json else sorted(RESULTS.glob(f"gan_{recipe.data.name}_*.jsonl")):
        read_rows(path)
    source = open_source(
        recipe.data.name, recipe.data.split, size=recipe.model.resolution, root=data, **recipe.data.options
    )
    images = load_images(source, note=print_note)  # before any training, to report problems with the data at once
    check_grid(planned, out, call="gan grid")
    check_data(planned, out, images.digest)
    compared = min(measure.choice, measure.samples, len(images))
    # parallel runs slow each other down, so times need the number of jobs
    about = {"data": images.name, "split": images.split, "data_sha256": images.digest, "jobs": jobs}
    measured = {**about, "extractor": extractor.label, "fake_images": measure.samples, "compared_images": compared}
    rows = {} if json is None else find_known_rows(planned, read_rows(json), measured)
    with warnings_as_notes(), image_progress() as bar:
        real = measure_real(images, extractor, measure, device=device, progress=bar)

    def measure_cell(cell: Cell) -> None:
        (result,) = results([cell], out)
        generator, _, weights = open_generator(out / cell.name)
        key = (file_digest(weights), images.digest, extractor.label, extractor.version, asdict(measure), device.type)
        compute = partial(measure_generator, generator, real, extractor, measure, device=device)
        with warnings_as_notes():
            # without a version, a change of the extractor's code would go unnoticed
            cached = extractor.version is not None
            distances = cached_distances(out / cell.name, key, compute) if cached else dict(compute().row())
        rows[cell.name] = make_result_row(result, distances, real=about, compared=compared)
        append_rows(json or choose_results_file(images.name, result), [rows[cell.name]])

    waiting = [cell for cell in planned if cell.name not in rows]
    for cell in waiting:
        if finished(cell, out):
            measure_cell(cell)
    with grid_progress(len(waiting)) as progress:
        run_grid(waiting, out, data=data, jobs=jobs, progress=progress, done=measure_cell, call="gan grid")
    # samples of the first seed; a run whose row was already in the file may have no weights here
    first = [cell for cell in planned if cell.seed == planned[0].seed and (out / cell.name / GENERATOR).is_file()]
    if first:
        write_png(out / SAMPLES, compare_samples([out / cell.name for cell in first], device=device))
        print_note(f"wrote {out / SAMPLES}, from the top: {', '.join(cell.variant for cell in first)}")
    return [rows[cell.name] for cell in planned]


def find_known_rows(
    planned: Sequence[GanCell], rows: Sequence[dict[str, Any]], measured: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Rows of the planned recipes that were measured in the same way, by cell name; from any hardware."""
    compared = [name for name in measured if name != "jobs"]
    matching = {
        (row.get("context"), row.get("recipe_hash")): row
        for row in rows
        if all(row.get(name) == measured[name] for name in compared)
    }
    keys = {cell.name: (cell.variant, digest(cell.resolved())) for cell in planned}
    return {name: matching[key] for name, key in keys.items() if key in matching}


def choose_results_file(data: str, result: dict[str, Any]) -> Path:
    """Such as `results/gan_cifar10_h200.jsonl`: the first word of the GPU's name with a digit, or cpu."""
    name = "cpu"
    if result["device"] == "cuda":
        words = re.findall(r"[a-z0-9]+", str(result["hardware"]).lower())
        name = next((word for word in words if any(letter.isdigit() for letter in word)), "cuda")
    return RESULTS / f"gan_{data}_{name}.jsonl"


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
