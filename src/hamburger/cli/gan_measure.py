"""`ham gan fid` and `ham gan grid`: distances of generated images, for one run or many."""

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

from hamburger.cli.compare import grid_bar
from hamburger.cli.output import image_bar, note, warnings_as_notes
from hamburger.generation.distances import Measure, look_at_real, measure_generator
from hamburger.tasks.sweep import Cell, GanCell, check_data, check_grid, finished, run_grid
from hamburger.tasks.sweep import rows as results
from hamburger.training.recipe_io import digest

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from hamburger.generation.metrics.features import NetworkExtractor


Extractor = Annotated[
    str, typer.Option(help="inception, torch-fidelity, efficientnet-lite0, or package.module:function")
]
Weights = Annotated[Path | None, typer.Option(help="the extractor's weights")]
Size = Annotated[int | None, typer.Option(help="pixels that the extractor takes; default: its own")]
Samples = Annotated[int, typer.Option(help="images to generate")]
Choice = Annotated[int, typer.Option(help="images of each set for kernel distance, precision and recall")]


def fid(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or its generator.safetensors")],
    data: Annotated[Path | None, typer.Option(help="the folder of the real images; embedded sets need none")] = None,
    extractor: Extractor = "inception",
    weights: Weights = None,
    samples: Samples = 50_000,
    choice: Choice = 10_000,
    split: Annotated[str | None, typer.Option(help="of the real images; default: as trained")] = None,
    resizer: Annotated[
        str | None,
        typer.Option(help="bilinear-antialias (default), bilinear or bilinear-tf1; torch-fidelity has its own"),
    ] = None,
    size: Size = None,
    other_weights: Annotated[
        bool, typer.Option("--other-weights", help="inception with other weights; the result is not called FID")
    ] = False,
    truncation: Annotated[float | None, typer.Option(help="the largest entry of a latent; default: none")] = None,
    seed: Annotated[int, typer.Option(help="of the generated images")] = 0,
    batch: Annotated[int, typer.Option(help="images at once")] = 256,
    cache: Annotated[Path | None, typer.Option(help="folder for statistics of real images")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    json: Annotated[Path | None, typer.Option(help="write the numbers here as one JSON object")] = None,
) -> None:
    """Frechet distance, kernel distance, precision and recall, each labelled with the network that it is by."""
    from hamburger.classification.data.load import load_images, open_source
    from hamburger.environment import Environment
    from hamburger.errors import CheckpointError
    from hamburger.files import check_writable, write_atomically
    from hamburger.generation.distances import Measure, find_extractor, look_at_real, measure_generator
    from hamburger.generation.weights import open_generator
    from hamburger.segmentation.predict import pick_device

    measure = Measure(samples=samples, choice=choice, seed=seed, truncation=truncation, batch=batch)
    if json is not None:
        check_writable(json)
    on = pick_device(device)
    generator, info, path = open_generator(run)
    if not {"data", "split"} <= info.extra.keys():
        raise CheckpointError(
            f"gan fid: {path} does not say which images it was trained on, as files of `ham gan train` do; in Python, "
            f"measure_generator of hamburger.generation.distances takes any"
        )
    network = find_extractor(extractor, weights, resizer=resizer, size=size, other_weights=other_weights)
    source = open_source(
        str(info.extra["data"]),
        split or str(info.extra["split"]),
        size=generator.resolution,
        root=data,
        **info.extra.get("data_options", {}),
    )
    images = load_images(source, note=note)
    with warnings_as_notes(), image_bar() as progress:
        real = look_at_real(images, network, measure, device=on, cache=cache, progress=progress)
        found = measure_generator(generator, real, network, measure, device=on, progress=progress)
    typer.echo(str(found))
    if json is not None:
        values = {
            "weights": str(path),
            **{key: info.extra.get(key) for key in ("recipe", "seed", "step")},
            "data": images.name,
            "split": images.split,
            "data_sha256": images.digest,
            "samples_seed": seed,
            "truncation": truncation,
            **found.row(),
            "compared_images": min(choice, samples, len(images)),
            **asdict(Environment.here(on.type)),
        }
        write_atomically(json, (json_format.dumps(values) + "\n").encode())


def grid(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list gan-recipes`")],
    out: Annotated[Path, typer.Option(help="a folder for the runs and their logs")],
    contexts: Annotated[str, typer.Option(help="with commas")] = "none,sagan,ylg,hamgan,efficient",
    seeds: Annotated[str, typer.Option(help="with commas")] = "0,1,2",
    data: Annotated[Path | None, typer.Option(help="the data folder")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="an override such as steps=500")] = None,
    jobs: Annotated[int, typer.Option(help="runs at once")] = 1,
    extractor: Extractor = "inception",
    weights: Weights = None,
    size: Size = None,
    samples: Samples = 50_000,
    choice: Choice = 10_000,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for the distances")] = "auto",
    json: Annotated[
        Path | None, typer.Option(help="append the rows here; default: results/gan_DATA_HARDWARE.jsonl")
    ] = None,
) -> None:
    """Train every context with every seed at the same budget, measure all, append a row each; skips what is done."""
    from rich.console import Console

    from hamburger.cli.output import numbers, words
    from hamburger.generation.distances import Measure, find_extractor
    from hamburger.generation.recipe import gan_variants
    from hamburger.segmentation.predict import pick_device
    from hamburger.tasks.sweep import GanCell, cells_of

    on = pick_device(device)
    network = find_extractor(extractor, weights, size=size)
    measure = Measure(samples=samples, choice=choice)
    own = numbers(seeds, "gan grid", "seeds")
    planned = cells_of(GanCell, recipe, gan_variants(words(contexts)), own, settings or (), call="gan grid")
    rows = measured_grid(planned, out, data=data, jobs=jobs, extractor=network, measure=measure, device=on, json=json)
    Console().print(table(rows))


# ----------------------------------------------------------------------------------------------------------------------
# A grid of GANs on the terminal: bars while it runs, rows as they come, a table at the end.


RESULTS = Path("results")
SAMPLES = "samples.png"


def measured_grid(
    planned: Sequence[GanCell],
    out: Path,
    *,
    data: Path | None,
    jobs: int,
    extractor: NetworkExtractor,
    measure: Measure,
    device: torch.device,
    json: Path | None,
) -> list[dict[str, Any]]:
    """Train all; each is measured as soon as it is trained, against one set of real images, and its row is then in the
    file. Runs whose row lies in `json` are not made again, also where their folders are gone.
    """
    from hamburger.classification.data.load import load_images, open_source
    from hamburger.cli.output import image_bar, note, warnings_as_notes
    from hamburger.errors import OptionError
    from hamburger.files import check_writable
    from hamburger.generation.image_sheets import write_png
    from hamburger.generation.metrics.features import file_digest
    from hamburger.generation.result_rows import append_rows, kept_distances, read_rows, row
    from hamburger.generation.samples import beside
    from hamburger.generation.weights import GENERATOR, open_generator

    recipe = planned[0].resolved()
    if out.is_file():
        raise OptionError(f"gan grid: --out {out} is a file; name a folder")
    # now, and not when all is trained: that rows can be added to what is there
    check_writable(json or RESULTS / "rows.jsonl")
    for path in [json] if json else sorted(RESULTS.glob(f"gan_{recipe.data.name}_*.jsonl")):
        read_rows(path)
    source = open_source(
        recipe.data.name, recipe.data.split, size=recipe.model.resolution, root=data, **recipe.data.options
    )
    images = load_images(source, note=note)  # before any training: what is wrong with the data is told now
    check_grid(planned, out, call="gan grid")
    check_data(planned, out, images.digest)
    compared = min(measure.choice, measure.samples, len(images))
    # runs at once slow each other down, so a time means little without their number
    about = {"data": images.name, "split": images.split, "data_sha256": images.digest, "jobs": jobs}
    measured = {**about, "extractor": extractor.label, "fake_images": measure.samples, "compared_images": compared}
    found = {} if json is None else known(planned, read_rows(json), measured)
    with warnings_as_notes(), image_bar() as bar:
        real = look_at_real(images, extractor, measure, device=device, progress=bar)

    def note_row(cell: Cell) -> None:
        (result,) = results([cell], out)
        generator, _, weights = open_generator(out / cell.name)
        key = (file_digest(weights), images.digest, extractor.label, extractor.version, asdict(measure), device.type)
        find = partial(measure_generator, generator, real, extractor, measure, device=device)
        with warnings_as_notes():
            # without a version, a change of the extractor's code would go unnoticed
            cached = extractor.version is not None
            distances = kept_distances(out / cell.name, key, find) if cached else dict(find().row())
        found[cell.name] = row(result, distances, real=about, compared=compared)
        append_rows(json or results_file(images.name, result), [found[cell.name]])

    waiting = [cell for cell in planned if cell.name not in found]
    for cell in waiting:
        if finished(cell, out):
            note_row(cell)
    with grid_bar(len(waiting)) as progress:
        run_grid(waiting, out, data=data, jobs=jobs, progress=progress, done=note_row, call="gan grid")
    # of the first seed; a run whose row came with the file may have no weights here
    first = [cell for cell in planned if cell.seed == planned[0].seed and (out / cell.name / GENERATOR).is_file()]
    if first:
        write_png(out / SAMPLES, beside([out / cell.name for cell in first], device=device))
        note(f"wrote {out / SAMPLES}, from the top: {', '.join(cell.variant for cell in first)}")
    return [found[cell.name] for cell in planned]


def known(
    planned: Sequence[GanCell], rows: Sequence[dict[str, Any]], measured: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Rows of these very recipes that were measured in this way, by the name of the cell; from whatever machine."""
    same = [name for name in measured if name != "jobs"]
    kept = {
        (each.get("context"), each.get("recipe_hash")): each
        for each in rows
        if all(each.get(name) == measured[name] for name in same)
    }
    keys = {cell.name: (cell.variant, digest(cell.resolved())) for cell in planned}
    return {name: kept[key] for name, key in keys.items() if key in kept}


def results_file(data: str, result: dict[str, Any]) -> Path:
    """`results/gan_cifar10_h200.jsonl`: the hardware's own letters and digits, or cpu."""
    name = "cpu"
    if result["device"] == "cuda":
        words = re.findall(r"[a-z0-9]+", str(result["hardware"]).lower())
        name = next((word for word in words if any(letter.isdigit() for letter in word)), "cuda")
    return RESULTS / f"gan_{data}_{name}.jsonl"


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean and standard deviation over the seeds, best last."""
    from rich.markup import escape
    from rich.table import Table

    first = rows[0]
    made = Table(
        title=escape(f"{first['recipe']}: {first['name']}, {first['fake_images']:,} generated images"),
        caption=escape(f"{first['hardware']}, torch {first['torch']}, {first['steps']} steps; by {first['extractor']}"),
    )
    made.add_column("context")
    for heading in ("Frechet", "spread", "kernel x 1000", "precision", "recall", "seeds", "ms/step", "peak MB"):
        made.add_column(heading, justify="right")
    by_context: dict[str, list[dict[str, Any]]] = {}
    for each in rows:
        by_context.setdefault(each["context"], []).append(each)

    def mean(own: list[dict[str, Any]], field: str) -> float:
        return statistics.mean(each[field] for each in own)

    for context, own in sorted(by_context.items(), key=lambda item: -mean(item[1], "frechet")):
        spread = f"{statistics.stdev(each['frechet'] for each in own):.2f}" if len(own) > 1 else ""
        times = [1000 * each["seconds_per_step"] for each in own if each["seconds_per_step"]]
        made.add_row(
            context,
            f"{mean(own, 'frechet'):.2f}",
            spread,
            f"{1000 * mean(own, 'kid'):.2f}",
            f"{mean(own, 'precision'):.3f}",
            f"{mean(own, 'recall'):.3f}",
            str(len(own)),
            f"{statistics.median(times):.1f}" if times else "",
            f"{max(each['peak_mb'] for each in own):.0f}",
        )
    return made
