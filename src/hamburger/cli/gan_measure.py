"""`ham gan fid` and `ham gan grid`: what generated images are worth, for one run or for many."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.notes import image_bar, note, warnings_as_notes

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
    from hamburger.data.generation.load import load_images, open_source
    from hamburger.environment import Environment
    from hamburger.errors import CheckpointError
    from hamburger.files import check_writable, write_atomically
    from hamburger.use.gan.distances import Measure, look_at_real, measure_generator
    from hamburger.use.gan.extractors import find_extractor
    from hamburger.use.gan.source import open_generator
    from hamburger.use.predict import pick_device

    measure = Measure(samples=samples, choice=choice, seed=seed, truncation=truncation, batch=batch)
    if json is not None:
        check_writable(json)
    on = pick_device(device)
    generator, info, path = open_generator(run)
    if not {"data", "split"} <= info.extra.keys():
        raise CheckpointError(
            f"gan fid: {path} does not say which images it was trained on, as files of `ham gan train` do; in Python, "
            f"measure_generator of hamburger.use.gan.distances takes any"
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

    from hamburger.cli.gan_grid import measured_grid, table
    from hamburger.cli.lists import numbers, words
    from hamburger.engine.gan.grid import GanCell
    from hamburger.engine.grid import cells_of
    from hamburger.recipes.gan_variants import gan_variants
    from hamburger.use.gan.distances import Measure
    from hamburger.use.gan.extractors import find_extractor
    from hamburger.use.predict import pick_device

    on = pick_device(device)
    network = find_extractor(extractor, weights, size=size)
    measure = Measure(samples=samples, choice=choice)
    own = numbers(seeds, "gan grid", "seeds")
    planned = cells_of(GanCell, recipe, gan_variants(words(contexts)), own, settings or (), call="gan grid")
    rows = measured_grid(planned, out, data=data, jobs=jobs, extractor=network, measure=measure, device=on, json=json)
    Console().print(table(rows))
