"""`ham predict`: what a trained network makes of photographs, by its task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def predict(
    weights: Annotated[Path, typer.Argument(metavar="RUN_OR_WEIGHTS", help="a run folder or a .safetensors file")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="JPEG, PNG, WebP files, or folders of them")],
    out: Annotated[Path, typer.Option(help="folder for summary.json and the files of the task")],
    recursive: Annotated[bool, typer.Option("--recursive", help="also look into the folders of a folder")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    scales: Annotated[str | None, typer.Option(help="look at each image in these sizes, with commas")] = None,
    flip: Annotated[bool, typer.Option("--flip", help="look at the mirrored image too")] = False,
    window: Annotated[int | None, typer.Option(help="side of a sliding window in pixels; default: none")] = None,
    max_pixels: Annotated[
        int | None, typer.Option(help="cut larger images into tiles, so that memory suffices; default: 1048576")
    ] = None,
    score: Annotated[float | None, typer.Option(help="of objects: from which score on; default: 0.5")] = None,
    overlay: Annotated[
        bool | None, typer.Option("--overlay/--no-overlay", help="default: yes, but not for --layout voc")
    ] = None,
    layout: Annotated[str, typer.Option(help="plain, or voc: the folders and ids of the VOC server")] = "plain",
) -> None:
    """What the network makes of photographs: labels, classes, objects, or, of LEFT RIGHT, disparities."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.cli.output import decimals
    from hamburger.errors import OptionError
    from hamburger.inference import predict_files
    from hamburger.inference.image_inputs import find_photos
    from hamburger.inference.locate import find_weights
    from hamburger.registry import options_of
    from hamburger.segmentation.predict import pick_device
    from hamburger.stereo.predict import find_pairs
    from hamburger.tasks import task_of_weights

    on = pick_device(device)
    path = find_weights(weights)
    task = task_of_weights(path)
    if task.answers is None:
        raise OptionError(f"predict: the task '{task.kind.task}' of {path} takes no photographs; see ham eval")
    asked: dict[str, Any] = {"flip": flip or None, "window": window, "max_pixels": max_pixels, "score": score}
    asked |= {"scales": None if scales is None else decimals(scales, "predict"), "overlay": overlay}
    asked |= {"layout": None if layout == "plain" else layout}
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given.keys() - options_of(task.answers):
        said = name.replace("_", "-")
        raise OptionError(f"predict: --{said} means nothing to the task '{task.kind.task}' of {path}; leave it out")
    net, info = task.load(path)
    answers = task.answers(net, info, on, **given)
    find = find_pairs if answers.pairs else find_photos
    found = find(images, recursive=recursive, outside=out)
    photos = predict_files.checked(found.photos, out, answers)
    out.mkdir(parents=True, exist_ok=True)

    settings = answers.settings() | ({"files": list(answers.files)} if answers.files else {})
    if photos:
        predict_files.Summary().write(
            out / predict_files.SUMMARY, planned=predict_files.targets(photos, answers), **settings
        )
    summary = predict_files.Summary(failed=[(str(path), why) for path, why in found.failed])
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            shown = progress.add_task("predicting", total=len(photos))
            predict_files.predict_all(
                answers,
                photos,
                out,
                after=lambda photo: progress.update(shown, advance=1, description=photo.name[-40:]),
                summary=summary,
            )
    finally:  # what is interrupted keeps the account of what it has done
        if summary.done or summary.failed:
            summary.write(out / predict_files.SUMMARY, **settings)
    console = Console()
    if summary.done:
        console.print(predict_files.table(answers, summary))
    for note in predict_files.notes(answers, found, summary, out):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    for _, why in summary.failed:
        typer.echo(f"ham: {why}", err=True)
    if summary.failed:
        raise typer.Exit(2)
