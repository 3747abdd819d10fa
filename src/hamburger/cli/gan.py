"""`ham gan`: train and sample HamGAN and the GANs it is compared with. hamburger-lab adds `fid`, `grid`, `report`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.output import DataFolder, Device, Devices, Resume, RunFolder, Seed, Settings, suggest

app = typer.Typer(help="Generate images with HamGAN, SNGAN, SAGAN and YLG.", no_args_is_help=True)

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
        suggest(f"ham gan sample {result.run} --out samples")


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
    from hamburger.devices import pick_device
    from hamburger.errors import OptionError
    from hamburger.files import check_writable
    from hamburger.generation.predict import SUMMARY, SampleRequest, count_images, select_row_classes, write_samples
    from hamburger.generation.weights import open_generator

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
    suggest(f"ham gan report {path.parent}")
