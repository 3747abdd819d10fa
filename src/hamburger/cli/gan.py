"""`ham gan`: train, sample and measure HamGAN and the GANs it is compared with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.output import DataFolder, Device, Devices, Resume, RunFolder, Seed, Settings

app = typer.Typer(help="Generate images with HamGAN, SNGAN, SAGAN and YLG.", no_args_is_help=True)

Extractor = Annotated[str, typer.Option(help="inception (FID's), or package.module:function")]
Weights = Annotated[Path | None, typer.Option(help="the extractor's weights; default: downloaded")]
Size = Annotated[int | None, typer.Option(help="input size of the extractor in pixels; default: its own")]
Samples = Annotated[int, typer.Option(help="images to generate")]
Compared = Annotated[int, typer.Option(help="images of each set for kernel distance, precision and recall")]
Truncation = Annotated[float | None, typer.Option(help="largest absolute value in a latent; default: no limit")]
TrainedRun = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or its generator.safetensors")]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list gan-recipes`, or a recipe.json")],
    run: RunFolder,
    data: DataFolder = None,
    seed: Seed = None,
    settings: Settings = None,
    devices: Devices = 1,
    accelerator: Device = "auto",
    resume: Resume = False,
) -> None:
    """Train a generator and its discriminator; continue an interrupted run with --resume."""
    from hamburger.cli.train import run_with_display
    from hamburger.generation.train import train_gan
    from hamburger.tasks import find_gan_recipe
    from hamburger.training.recipe import apply

    resolved = apply(find_gan_recipe(recipe), settings or ())
    resolved = resolved if seed is None else replace(resolved, seed=seed)
    training = partial(train_gan, resolved, run, data=data, devices=devices, accelerator=accelerator, resume=resume)
    result = run_with_display(training)
    if result is not None:
        values = result.values
        speed = "" if values["images_per_s"] is None else f"{values['images_per_s']:.1f} images/s; "
        typer.echo(
            f"{values['steps']} steps, context {values['context']}: D {values['discriminator']:.3f}, "
            f"G {values['generator']:.3f}; {speed}samples in {result.run / 'samples'}"
        )


@app.command()
def sample(
    run: TrainedRun,
    out: Annotated[Path, typer.Option(help="folder for the images")],
    count: Annotated[int, typer.Option(help="number of single images, also in one grid")] = 64,
    rows: Annotated[int, typer.Option(help="images of each class in classes.png")] = 8,
    interpolations: Annotated[int, typer.Option(help="rows of interpolations.png")] = 4,
    stops: Annotated[int, typer.Option(help="images in each interpolation")] = 9,
    classes: Annotated[
        str, typer.Option(help="class names or indices, comma-separated; default: all, 20 of them in classes.png")
    ] = "",
    truncation: Truncation = None,
    seed: Annotated[int, typer.Option(help="the same seed gives the same images")] = 0,
    batch: Annotated[int, typer.Option(help="batch size; does not change the images")] = 64,
    device: Device = "auto",
) -> None:
    """Write images of a trained generator: single images, a grid, a row per class, interpolations."""
    from hamburger.cli.output import parse_names, print_note, progress_bar
    from hamburger.errors import OptionError
    from hamburger.files import check_writable
    from hamburger.generation.predict import SUMMARY, SampleRequest, count_images, select_row_classes, write_samples
    from hamburger.generation.weights import open_generator
    from hamburger.tensors import pick_device

    request = SampleRequest(count, rows, interpolations, stops, parse_names(classes), truncation, seed, batch)
    on = pick_device(device)
    generator, info, path = open_generator(run)
    shown, total = select_row_classes(request, info.classes), count_images(request, info.classes)
    if out.is_file():
        raise OptionError(f"gan sample: --out {out} is a file; give a folder")
    check_writable(out / SUMMARY)
    about = {"weights": str(path), **{key: info.extra.get(key) for key in ("recipe", "step")}}
    with progress_bar("generating", total) as update:
        written = write_samples(
            generator.to(on), info.classes, out, request, after=lambda: update(advance=1), about=about
        )
    if rows and not request.classes and len(shown) < len(info.classes):
        print_note(f"classes.png has the first {len(shown)} of {len(info.classes)} classes; --classes selects others")
    typer.echo(f"wrote {len(written)} files to {out}")


@app.command()
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
    from hamburger.cli.output import image_progress, print_note, warnings_as_notes
    from hamburger.environment import describe_environment
    from hamburger.errors import CheckpointError, shorten
    from hamburger.files import check_writable, encode_json, write_atomically
    from hamburger.generation.evaluate import MeasureSettings, measure_generator, measure_real
    from hamburger.generation.metrics.extractors import create_extractor
    from hamburger.generation.weights import open_generator
    from hamburger.tensors import pick_device
    from hamburger.training.recipe import check_data_options

    measure = MeasureSettings(samples=samples, compared=compared, seed=seed, truncation=truncation, batch=batch)
    if json is not None:
        check_writable(json)
    on = pick_device(device)
    generator, info, path = open_generator(run)
    if not {"data", "split"} <= info.extra.keys():
        raise CheckpointError(
            f"gan fid: {path} does not say which images it was trained on, unlike files of `ham gan train`; use "
            f"hamburger.generation.evaluate.measure_generator in Python instead"
        )
    network = create_extractor(extractor, weights, size=size)
    options = info.extra.get("data_options", {})
    if not isinstance(options, dict):
        raise CheckpointError(f"gan fid: {path} has data_options that are no options (got {shorten(options)})")
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
