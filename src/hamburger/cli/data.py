"""`ham data`: look at a data set before training, and build the one that must be built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hamburger.errors import OptionError

app = typer.Typer(help="Check and prepare data sets.", no_args_is_help=True)
prepare = typer.Typer(help="Build what a data set needs.", no_args_is_help=True)
app.add_typer(prepare, name="prepare")


@app.callback()
def data() -> None:
    """Check and prepare data sets."""


@prepare.callback()
def preparing() -> None:
    """Build what a data set needs."""


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="a data set of `ham list datasets`, detection-sets or stereo-sets")],
    data: Annotated[Path | None, typer.Option(help="its folder; none for a generated set")] = None,
    split: Annotated[str, typer.Option(help="splits, with commas")] = "train,val",
    option: Annotated[list[str] | None, typer.Option(help="name=value of the set, such as classes=cat,dog")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="read every file again, whatever is known of it")] = False,
) -> None:
    """Read all of a data set: problems with their paths, classes and their shares, sizes."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.detection.data import detection_sets
    from hamburger.segmentation.data import SegmentationSet, create_dataset
    from hamburger.segmentation.data.checks import (
        build_class_table,
        count_shared_images,
        format_heading,
        inspect_dataset,
    )
    from hamburger.stereo.data import stereo_sets

    options = dict(parsed(text) for text in option or [])
    for sets, of_its_kind in ((detection_sets, check_objects), (stereo_sets, check_pairs)):
        if name in sets:
            of_its_kind(name, data, [part.strip() for part in split.split(",")], options, fresh=fresh)
            return
    console, errors, problems = Console(), Console(stderr=True), 0
    before: list[SegmentationSet] = []
    for one in (part.strip() for part in split.split(",")):
        dataset = create_dataset(name, one, data, **options)
        with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
            task = progress.add_task(f"reading {one}", total=len(dataset))
            found = inspect_dataset(dataset, cache=not fresh, after=lambda task=task: progress.advance(task))  # type: ignore[misc]
        console.print(format_heading(dataset, found), markup=False, highlight=False)
        console.print(build_class_table(dataset, found))
        for seen in before:
            shared = count_shared_images(seen, dataset)
            if shared:
                what = "1 image is" if shared == 1 else f"{shared:,} images are"
                console.print(f"note: {what} in both {seen.split} and {one}", markup=False, highlight=False)
        before.append(dataset)
        problems += len(found.problems)
        for problem in found.problems:
            typer.echo(problem, err=True)
    complain(name, problems)


def check_pairs(name: str, data: Path | None, splits: list[str], options: dict[str, Any], *, fresh: bool) -> None:
    """The same of stereo pairs."""
    from hamburger.segmentation.data.checks import format_sizes
    from hamburger.stereo.data import create_stereo_set
    from hamburger.stereo.data.checks import inspect_stereo

    problems = 0
    for one in splits:
        pairs = create_stereo_set(name, one, data, **options)
        found = inspect_stereo(pairs, cache=not fresh)
        typer.echo(
            f"{name}, {one}: {len(pairs):,} pairs, {format_sizes(found.sizes)}, disparities up to {found.largest:g} px, "
            f"known in {found.known:.2%} of the pixels"
        )
        problems += len(found.problems)
        for problem in found.problems:
            typer.echo(problem, err=True)
    complain(name, problems)


def check_objects(name: str, data: Path | None, splits: list[str], options: dict[str, Any], *, fresh: bool) -> None:
    """The same of scenes with objects."""
    from hamburger.detection.data import create_detection_set
    from hamburger.detection.data.checks import inspect_scenes
    from hamburger.segmentation.data.checks import format_sizes

    problems = 0
    for one in splits:
        scenes = create_detection_set(name, one, data, **options)
        found = inspect_scenes(scenes, cache=not fresh)
        counted = zip(scenes.classes, found.objects, strict=True)
        typer.echo(
            f"{name}, {one}: {len(scenes):,} images, {format_sizes(found.sizes)}, {sum(found.objects):,} objects: "
            + ", ".join(f"{each} {count:,}" for each, count in counted)
        )
        problems += len(found.problems)
        for problem in found.problems:
            typer.echo(problem, err=True)
    complain(name, problems)


def complain(name: str, problems: int) -> None:
    if problems:
        typer.echo(f"ham: {name} has {problems} problem{'s' if problems > 1 else ''}, listed above", err=True)
        raise typer.Exit(2)


@prepare.command("voc")
def prepare_voc(
    root: Annotated[Path, typer.Option(help="VOC 2012: VOCdevkit/VOC2012 or a folder above it")],
    sbd: Annotated[Path | None, typer.Option(help="SBD: benchmark_RELEASE/dataset; default: near ROOT")] = None,
    any_counts: Annotated[bool, typer.Option("--any-counts", help="take what is there, official or not")] = False,
) -> None:
    """Build the augmented training set (10,582 images) from SBD's labels; may be stopped and called again."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.segmentation.data.prepare_voc import EXPECTED
    from hamburger.segmentation.data.prepare_voc import prepare_voc as build

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("writing labels", total=None)
        done = build(
            root,
            sbd,
            expected=None if any_counts else EXPECTED,
            after=lambda total: progress.update(task, total=total, advance=1),
        )
    counts = ", ".join(f"{name} {count:,}" for name, count in done.counts.items() if count is not None)
    typer.echo(f"{done.tree}: {counts}")
    typer.echo(f"labels: {done.from_voc:,} of VOC, {done.from_sbd:,} of SBD; {done.already:,} were there already")
    for note in done.notes:
        typer.echo(note)


def parsed(text: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON where it is JSON."""
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--option takes name=value, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
