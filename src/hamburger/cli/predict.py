"""`ham predict`: what a network says of images, in files for machines and for eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def predict(
    weights: Annotated[Path, typer.Argument(metavar="RUN_OR_WEIGHTS", help="a run folder or a .safetensors file")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="JPEG, PNG, WebP files, or folders of them")],
    out: Annotated[Path, typer.Option(help="folder for what is found, the overlays and summary.json")],
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
    """What a network says of images, by the task of the weights: classes of pixels, objects, or, of LEFT RIGHT,
    disparities."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.cli.bench import decimals
    from hamburger.errors import OptionError
    from hamburger.tasks import task_of_weights
    from hamburger.use import account, job
    from hamburger.use.photos import find_photos
    from hamburger.use.predict import pick_device
    from hamburger.use.source import find_weights

    on, path = pick_device(device), find_weights(weights)
    task = task_of_weights(path)
    given: dict[str, Any] = {"flip": flip or None, "window": window, "max_pixels": max_pixels, "score": score}
    given["scales"] = None if scales is None else decimals(scales, "predict")
    given = {key: value for key, value in given.items() if value is not None}
    if not task.photographs:
        if given or (recursive, overlay, layout) != (False, None, "plain"):
            raise OptionError(
                f"predict: {path} is for the task '{task.kind.task}', which takes none of recursive, scales, flip, "
                "window, max-pixels, score, overlay and layout; leave them out"
            )
        for line in task.predict(path, images, out, device=on):
            typer.echo(line)
        return
    for key in given:
        if key not in task.wishes:
            raise OptionError(
                f"predict: {path} is for the task '{task.kind.task}', which takes no --{key.replace('_', '-')}; leave "
                "it out"
            )
    net, info = task.load(path)
    predictor = task.predictor(net, info, on, **given)
    where = job.layout(layout, info.classes, predictor.suffix)
    with_overlay = (layout == "plain") if overlay is None else overlay
    found = find_photos(images, recursive=recursive, outside=out)
    photos = job.checked(found.photos, out, where, with_overlay)
    out.mkdir(parents=True, exist_ok=True)

    settings = {"classes": list(info.classes), "protocol": str(predictor.protocol)}
    if photos:
        job.Summary().write(out / job.SUMMARY, planned=job.targets(photos, where, with_overlay), **settings)
    summary = job.Summary(failed=[(str(path), why) for path, why in found.failed])
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("predicting", total=len(photos))
            job.predict_all(
                predictor,
                photos,
                out,
                where=where,
                overlay=with_overlay,
                after=lambda photo: progress.update(bar, advance=1, description=photo.name[-40:]),
                summary=summary,
            )
    finally:  # what is interrupted keeps the account of what it has done
        if summary.done or summary.failed:
            summary.write(out / job.SUMMARY, **settings)
    console = Console()
    if summary.done:
        console.print(account.table(summary))
    for note in account.notes(found, summary, out):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    for _, why in summary.failed:
        typer.echo(f"ham: {why}", err=True)
    if summary.failed:
        raise typer.Exit(2)
