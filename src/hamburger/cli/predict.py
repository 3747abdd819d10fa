"""`ham predict`: what a network says of images, in files; label PNGs and overlays where it is of segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    weights: Annotated[Path, typer.Argument(metavar="RUN_OR_WEIGHTS", help="a run folder or a .safetensors file")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="JPEG, PNG, WebP files, or folders of them")],
    out: Annotated[Path, typer.Option(help="folder for the labels, the overlays and summary.json")],
    recursive: Annotated[bool, typer.Option("--recursive", help="also look into the folders of a folder")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    scales: Annotated[str, typer.Option(help="look at each image in these sizes, with commas")] = "1",
    flip: Annotated[bool, typer.Option("--flip", help="look at the mirrored image too")] = False,
    window: Annotated[int | None, typer.Option(help="side of a sliding window in pixels; default: none")] = None,
    max_pixels: Annotated[int, typer.Option(help="cut larger images into tiles, so that memory suffices")] = 2**20,
    overlay: Annotated[
        bool | None, typer.Option("--overlay/--no-overlay", help="default: yes, but not for --layout voc")
    ] = None,
    layout: Annotated[str, typer.Option(help="plain, or voc: the folders and ids of the VOC server")] = "plain",
) -> None:
    """What a network says of images: for segmentation palette PNGs, overlays and shares, for stereo (LEFT RIGHT)
    disparity maps; by the task of the weights."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.cli.bench import decimals
    from hamburger.errors import OptionError
    from hamburger.models.weights import load_weights
    from hamburger.recipes.kinds import SEGMENTATION
    from hamburger.tasks import task_of_weights
    from hamburger.use import account, job
    from hamburger.use.photos import find_photos
    from hamburger.use.predict import Predictor, pick_device
    from hamburger.use.source import find_weights

    on, path = pick_device(device), find_weights(weights)
    chosen = task_of_weights(path)
    if chosen.kind is not SEGMENTATION:
        given = (recursive, scales, flip, window, max_pixels, overlay, layout)
        if given != (False, "1", False, None, 2**20, None, "plain"):
            raise OptionError(
                f"predict: {path} is for the task '{chosen.kind.task}', which takes none of recursive, scales, flip, "
                "window, max-pixels, overlay and layout; leave them out"
            )
        for line in chosen.predict(path, images, out, device=on):
            typer.echo(line)
        return
    net, info = load_weights(path)
    predictor = Predictor(
        net, info, on, scales=decimals(scales, "predict"), flip=flip, window=window, max_pixels=max_pixels
    )
    where = job.layout(layout, info.classes)
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
            task = progress.add_task("predicting", total=len(photos))
            job.predict_all(
                predictor,
                photos,
                out,
                where=where,
                overlay=with_overlay,
                after=lambda photo: progress.update(task, advance=1, description=photo.name[-40:]),
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
