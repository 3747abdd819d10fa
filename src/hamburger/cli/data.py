"""`ham data`: check a data set before training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.output import DataFolder, parse_options, progress_bar, suggest
from hamburger.errors import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

CheckedSplit = tuple[Any, "list[RenderableType]", list[str]]  # data set, what to print, problems

app = typer.Typer(help="Check data sets.", no_args_is_help=True)


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="a name from `ham list datasets`, detection-sets or stereo-sets")],
    data: DataFolder = None,
    split: Annotated[str, typer.Option(help="comma-separated splits")] = "train,val",
    option: Annotated[
        list[str] | None,
        typer.Option(help="an option of the data set, name=value, such as classes=cat,dog; may be repeated"),
    ] = None,
) -> None:
    """Read a whole data set; print problems with their paths, class frequencies and image sizes."""
    from rich.console import Console

    from hamburger.detection.data import detection_sets
    from hamburger.segmentation.data.checks import count_shared_images
    from hamburger.stereo.data import stereo_sets

    check_split = _check_scenes if name in detection_sets else _check_pairs if name in stereo_sets else _check_images
    console, count = Console(), 0
    before: list[Any] = []
    for one in (part.strip() for part in split.split(",")):
        dataset, description, problems = check_split(name, one, data, parse_options(option))
        for part in description:
            console.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))
        for other in before:
            shared = count_shared_images(other, dataset)
            if shared:
                images = "1 image is" if shared == 1 else f"{shared:,} images are"
                typer.echo(f"note: {images} in both {other.split} and {one}")
        before.append(dataset)
        count += len(problems)
        for problem in problems:
            typer.echo(printable(problem), err=True)
    if count:
        typer.echo(f"ham: {name} has {count} problem{'s' if count > 1 else ''}, listed above", err=True)
        raise typer.Exit(2)
    settings = [f"--set data.options.{each}" for each in option or ()]
    folder = [] if data is None else [f"--data {data}"]
    suggest(" ".join([f"ham train {_find_recipe(name)} --run runs/{name}", *folder, *settings]))


def _find_recipe(name: str) -> str:
    """The name of a recipe that reads the data set; rather one for this device, and rather of the same name."""
    from hamburger.devices import find_gpu
    from hamburger.tasks import recipes
    from hamburger.training.recipe import read_device

    device = "CPU" if find_gpu() is None else "GPU"
    fitting = [
        (read_device(make) != device, recipe != name, recipe)
        for registry in recipes.values()
        for recipe, make in registry.items()
        if make().data.name == name
    ]
    return min(fitting)[-1] if fitting else "RECIPE"


def _check_images(name: str, split: str, data: Path | None, options: dict[str, Any]) -> CheckedSplit:
    from hamburger.segmentation.data import create_dataset
    from hamburger.segmentation.data.checks import format_sizes, inspect_dataset

    images = create_dataset(name, split, data, **options)
    with progress_bar(f"reading {split}", len(images)) as update:
        findings = inspect_dataset(images, after=lambda: update(advance=1))
    heading = f"{name}, {split}: {len(images):,} images, {format_sizes(findings.sizes)}"
    notes = [f"note: {line}" for line in findings.notes]
    return images, [heading, _class_table(images.classes, findings.pixels), *notes], findings.problems


def _class_table(classes: Sequence[str], pixels: Sequence[int]) -> Table:
    """A table of the classes with their share of all pixels."""
    from rich.table import Table

    table = Table()
    for heading in ("class", "name", "share"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    total = max(1, sum(pixels))
    for i, (name, count) in enumerate(zip(classes, pixels, strict=False)):
        table.add_row(str(i), printable(name), f"{count / total:.2%}" if count else "none")
    table.add_row("255", "unlabelled", f"{pixels[-1] / total:.2%}")
    return table


def _check_scenes(name: str, split: str, data: Path | None, options: dict[str, Any]) -> CheckedSplit:
    from hamburger.detection.data import create_detection_set
    from hamburger.segmentation.data.checks import format_sizes

    scenes = create_detection_set(name, split, data, **options)
    with progress_bar(f"reading {split}", len(scenes)) as update:
        objects, sizes = scenes.count(lambda: update(advance=1))
        problems = scenes.problems(lambda: update(advance=1))
    listed = ", ".join(f"{printable(each)} {objects[label]:,}" for label, each in enumerate(scenes.classes))
    heading = f"{name}, {split}: {len(scenes):,} images, {format_sizes(sizes)}"
    return scenes, [f"{heading}, {objects.total():,} objects: {listed}"], problems


def _check_pairs(name: str, split: str, data: Path | None, options: dict[str, Any]) -> CheckedSplit:
    from hamburger.segmentation.data.checks import format_sizes
    from hamburger.stereo.data import create_stereo_set, inspect_stereo

    pairs = create_stereo_set(name, split, data, **options)
    with progress_bar(f"reading {split}", len(pairs)) as update:
        findings = inspect_stereo(pairs, lambda: update(advance=1))
    heading = f"{name}, {split}: {len(pairs):,} pairs, {format_sizes(findings.sizes)}"
    known = f"disparities up to {findings.largest:g} px, known in {findings.known:.2%} of the pixels"
    return pairs, [f"{heading}, {known}"], findings.problems
