"""`ham gan`: train, sample and measure HamGAN and its rivals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.gan_measure import fid, grid

app = typer.Typer(help="Generate images: HamGAN and its rivals.", no_args_is_help=True)
app.command("fid")(fid)
app.command("grid")(grid)


@app.callback()
def gan() -> None:
    """Generate images: HamGAN and its rivals."""


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list gan-recipes`, or a recipe.json")],
    run: Annotated[Path, typer.Option(help="the run folder; it must not hold another run")],
    data: Annotated[Path | None, typer.Option(help="the data folder; embedded sets need none")] = None,
    seed: Annotated[int | None, typer.Option(help="instead of the recipe's")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="such as model.context=sagan; may be repeated")
    ] = None,
    devices: Annotated[int, typer.Option(help="processes on this machine, one per GPU")] = 1,
    nodes: Annotated[int, typer.Option(help="machines; start the command on each, or use torchrun")] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on from the last checkpoint in the run folder")] = False,
) -> None:
    """Train a generator and its discriminator; what is stopped, by whatever, goes on with --resume."""
    from hamburger.cli.train import shown
    from hamburger.generation.train import train_gan
    from hamburger.tasks.recipes import find_gan_recipe
    from hamburger.training.recipe_io import apply

    wanted = apply(find_gan_recipe(recipe), settings or ())
    wanted = wanted if seed is None else replace(wanted, seed=seed)
    result = shown(
        lambda listen: train_gan(
            wanted,
            run,
            data=data,
            devices=devices,
            nodes=nodes,
            accelerator=accelerator,
            resume=resume,
            on_event=listen,
        )
    )
    if result is not None:
        found = result.values
        speed = "" if found["images_per_s"] is None else f"{found['images_per_s']:.1f} images/s; "
        typer.echo(
            f"{found['steps']} steps, context {found['context']}: D {found['discriminator']:.3f}, "
            f"G {found['generator']:.3f}; {speed}samples in {result.run / 'samples'}"
        )


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or its generator.safetensors")],
    out: Annotated[Path, typer.Option(help="folder for the pictures")],
    count: Annotated[int, typer.Option(help="single images, and a sheet of them")] = 64,
    rows: Annotated[int, typer.Option(help="images of each class in classes.png")] = 8,
    ways: Annotated[int, typer.Option(help="rows of interpolations.png")] = 4,
    stops: Annotated[int, typer.Option(help="images from one end of a way to the other")] = 9,
    classes: Annotated[
        str, typer.Option(help="only these, by name or number, with commas; default: all, 20 of them in classes.png")
    ] = "",
    truncation: Annotated[float | None, typer.Option(help="the largest entry of a latent; default: none")] = None,
    seed: Annotated[int, typer.Option(help="the same seed gives the same pictures")] = 0,
    batch: Annotated[int, typer.Option(help="images at once; changes no picture")] = 64,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Write images of a trained generator: single ones, a sheet, a row a class, interpolations."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.cli.output import note, words
    from hamburger.errors import OptionError
    from hamburger.files import check_writable
    from hamburger.generation.samples import SUMMARY, Wanted, images_asked, row_classes, write_samples
    from hamburger.generation.weights import open_generator
    from hamburger.segmentation.predict import pick_device

    wanted = Wanted(count, rows, ways, stops, words(classes), truncation, seed, batch)
    on = pick_device(device)
    generator, info, path = open_generator(run)
    shown, asked = row_classes(wanted, info.classes), images_asked(wanted, info.classes)
    if out.is_file():
        raise OptionError(f"gan sample: --out {out} is a file; name a folder")
    check_writable(out / SUMMARY)
    about = {"weights": str(path), **{key: info.extra.get(key) for key in ("recipe", "step")}}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("generating", total=asked)
        written = write_samples(
            generator.to(on), info.classes, out, wanted, after=lambda: bar.advance(task), about=about
        )
    if rows and not wanted.classes and len(shown) < len(info.classes):
        note(f"classes.png has the first {len(shown)} of {len(info.classes)} classes; --classes names others")
    typer.echo(f"wrote {len(written)} files to {out}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder of `ham gan train`")],
    out: Annotated[Path | None, typer.Option(help="the file to write; default: report.html in the run")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """One page about a run: curves, samples over time, the atoms of the ham at work on a generated image."""
    from rich.console import Console

    from hamburger.report.gan_page import write_gan_report

    page = write_gan_report(run, out or run / "report.html", device=device)
    Console().print(f"wrote {page}", soft_wrap=True, highlight=False)
