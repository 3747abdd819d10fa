"""`ham data`: check a data set before training, and build PASCAL VOC's augmented training set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hamburger.errors import OptionError

app = typer.Typer(help="Check and prepare data sets.", no_args_is_help=True)
prepare = typer.Typer(help="Build the files that a data set needs.", no_args_is_help=True)
app.add_typer(prepare, name="prepare")


@app.callback()
def data() -> None:
    """Check and prepare data sets."""


@prepare.callback()
def prepare_group() -> None:
    """Build the files that a data set needs."""


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="a name from `ham list datasets`, detection-sets or stereo-sets")],
    data: Annotated[Path | None, typer.Option(help="data folder; generated sets need none")] = None,
    split: Annotated[str, typer.Option(help="comma-separated splits")] = "train,val",
    option: Annotated[
        list[str] | None,
        typer.Option(help="an option of the data set, name=value, such as classes=cat,dog; may be repeated"),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="ignore the cache and read every file again")] = False,
) -> None:
    """Read a whole data set; print problems with their paths, class frequencies and image sizes."""
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

    options = dict(parse_option(text) for text in option or [])
    for sets, check_set in ((detection_sets, check_detection_set), (stereo_sets, check_stereo_set)):
        if name in sets:
            check_set(name, data, [part.strip() for part in split.split(",")], options, fresh=fresh)
            return
    console, errors, problems = Console(), Console(stderr=True), 0
    before: list[SegmentationSet] = []
    for one in (part.strip() for part in split.split(",")):
        dataset = create_dataset(name, one, data, **options)
        with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
            task = progress.add_task(f"reading {one}", total=len(dataset))
            findings = inspect_dataset(dataset, cache=not fresh, after=lambda task=task: progress.advance(task))  # type: ignore[misc]
        console.print(format_heading(dataset, findings), markup=False, highlight=False)
        console.print(build_class_table(dataset, findings))
        for seen in before:
            shared = count_shared_images(seen, dataset)
            if shared:
                what = "1 image is" if shared == 1 else f"{shared:,} images are"
                console.print(f"note: {what} in both {seen.split} and {one}", markup=False, highlight=False)
        before.append(dataset)
        problems += len(findings.problems)
        for problem in findings.problems:
            typer.echo(problem, err=True)
    exit_on_problems(name, problems)


def check_stereo_set(name: str, data: Path | None, splits: list[str], options: dict[str, Any], *, fresh: bool) -> None:
    """Check splits of a stereo data set."""
    from hamburger.segmentation.data.checks import format_sizes
    from hamburger.stereo.data import create_stereo_set, inspect_stereo

    problems = 0
    for one in splits:
        pairs = create_stereo_set(name, one, data, **options)
        findings = inspect_stereo(pairs, cache=not fresh)
        typer.echo(
            f"{name}, {one}: {len(pairs):,} pairs, {format_sizes(findings.sizes)}, "
            f"disparities up to {findings.largest:g} px, known in {findings.known:.2%} of the pixels"
        )
        problems += len(findings.problems)
        for problem in findings.problems:
            typer.echo(problem, err=True)
    exit_on_problems(name, problems)


def check_detection_set(
    name: str, data: Path | None, splits: list[str], options: dict[str, Any], *, fresh: bool
) -> None:
    """Check splits of a detection data set."""
    from hamburger.detection.data import create_detection_set
    from hamburger.segmentation.data.checks import format_sizes

    problems = 0
    for one in splits:
        scenes = create_detection_set(name, one, data, **options)
        found = scenes.problems(cache=not fresh)
        objects, sizes = scenes.count()
        listed = ", ".join(f"{each} {objects[label]:,}" for label, each in enumerate(scenes.classes))
        typer.echo(
            f"{name}, {one}: {len(scenes):,} images, {format_sizes(sizes)}, {objects.total():,} objects: {listed}"
        )
        problems += len(found)
        for problem in found:
            typer.echo(problem, err=True)
    exit_on_problems(name, problems)


def exit_on_problems(name: str, problems: int) -> None:
    """Exit with status 2 if there are problems."""
    if problems:
        typer.echo(f"ham: {name} has {problems} problem{'s' if problems > 1 else ''}, listed above", err=True)
        raise typer.Exit(2)


@prepare.command("voc")
def prepare_voc(
    root: Annotated[Path, typer.Option(help="VOC 2012: VOCdevkit/VOC2012 or a folder above it")],
    sbd: Annotated[
        Path | None, typer.Option(help="SBD: benchmark_RELEASE/dataset; default: searched near ROOT")
    ] = None,
    any_counts: Annotated[
        bool, typer.Option("--any-counts", help="accept other numbers of images than the official ones")
    ] = False,
) -> None:
    """Build the augmented training set (10,582 images) from SBD's labels; can be interrupted and repeated."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.segmentation.data.published import EXPECTED
    from hamburger.segmentation.data.published import prepare_voc as build

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
    typer.echo(f"labels: {done.from_voc:,} of VOC, {done.from_sbd:,} of SBD; {done.already:,} existed already")
    for note in done.notes:
        typer.echo(note)


def parse_option(text: str) -> tuple[str, Any]:
    """Parse `name=value`; a value that is valid JSON is read as JSON, any other as text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--option takes name=value (got {text!r})")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
