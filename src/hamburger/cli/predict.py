"""`ham predict`: run a trained network on image files; outputs depend on its task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hamburger.cli.output import Device, Flip, WeightsPath, Window, parse_floats, parse_side, progress_bar, suggest


def predict(
    weights: WeightsPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="image files, or folders of them")],
    out: Annotated[Path, typer.Option(help="folder for summary.json and the output files")],
    list_file: Annotated[
        Path | None,
        typer.Option("--list", help="only the images whose ids this text file lists, such as VOC's test.txt"),
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="weights of the run's last checkpoint instead of its best ones")
    ] = False,
    recursive: Annotated[bool, typer.Option("--recursive", help="search folders recursively")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="skip images that earlier calls with the same options have predicted")
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="predict each N-th image from the I-th on, as one of N processes; see torchrun"
        ),
    ] = None,
    device: Device = "auto",
    scales: Annotated[str | None, typer.Option(help="average predictions over these scales, comma-separated")] = None,
    flip: Flip = False,
    window: Window = None,
    max_pixels: Annotated[
        int | None, typer.Option(help="split larger images into tiles to limit memory; default: 1048576")
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(help="resize images to this longer side; 0 or none keeps their size; default: as in training"),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="images larger than memory: one context for the whole image, tile by tile"),
    ] = False,
    score: Annotated[float | None, typer.Option(help="detection: minimum score of an object; default: 0.5")] = None,
    overlay: Annotated[
        bool | None,
        typer.Option(
            "--overlay/--no-overlay",
            help="also write the image with the prediction drawn over it; default: yes",
        ),
    ] = None,
) -> None:
    """Predict labels, classes or objects of images, or disparities of LEFT RIGHT pairs."""
    import hashlib
    import os
    from contextlib import nullcontext

    import torch
    from rich.console import Console

    from hamburger.devices import pick_device
    from hamburger.errors import DataError, OptionError, printable
    from hamburger.inference import predict_files
    from hamburger.inference.find_weights import find_weights, write_last_weights
    from hamburger.inference.summary import Shard
    from hamburger.registry import options_of
    from hamburger.segmentation.data.base import read_ids
    from hamburger.stereo.predict import find_pairs
    from hamburger.tasks import task_of_weights
    from hamburger.training.datasets import join_names

    part = Shard.of_process() if shard is None else Shard.parse(shard)
    torchrun = shard is None and part.count > 1
    on = pick_device(device)
    if torchrun and device == "auto" and on.type != "cpu":
        on = torch.device(on.type, int(os.environ["LOCAL_RANK"]))
    silent = torchrun and part.index > 1  # processes that share a terminal
    path = write_last_weights(Path(weights)) if last else find_weights(weights)
    task = task_of_weights(path)
    predictor: Any = task.predictor
    if predictor is None:
        raise OptionError(f"predict: the task '{task.name}' of {path} does not predict on image files; use `ham eval`")
    options: dict[str, Any] = {"flip": flip or None, "window": window, "max_pixels": max_pixels, "score": score}
    options |= {"overlay": overlay, "side": None if side is None else parse_side(side)}
    options["scales"] = None if scales is None else parse_floats(scales, "predict")
    options["exact"] = out / ".exact" if exact else None  # find_images skips hidden folders
    chosen_options = {name: value for name, value in options.items() if value is not None}
    for name in chosen_options.keys() - options_of(predictor):
        flag = name.replace("_", "-")
        raise OptionError(f"predict: --{flag} does not apply to the task '{task.name}' of {path}; leave it out")
    net, info = task.load(path)
    file_predictor = predictor(net, info, on, **chosen_options)
    find = find_pairs if file_predictor.pairs else predict_files.find_images
    inputs = find(images, recursive=recursive, outside=out)
    if list_file is not None:
        ids, by_name = list(dict.fromkeys(read_ids(list_file))), {image.name: image for image in inputs.photos}
        if missing := [id for id in ids if id not in by_name]:
            count = f"{len(missing)} of the {len(ids)} images of {list_file}"
            raise DataError(f"predict: {count} are not among the given images: {join_names(missing)}")
        inputs = replace(inputs, photos=tuple(by_name[id] for id in ids), left_out=())
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    bar = progress_bar("predicting", len(part.select(inputs.photos)))
    update: Callable[..., None]
    with nullcontext(_no_bar) if silent else bar as update:
        if exact:  # a bar for each image
            file_predictor.progress = lambda done, total: update(completed=done, total=total)
        summary = predict_files.predict_folder(
            file_predictor,
            inputs,
            out,
            shard=part,
            resume=resume,
            after=lambda image: update(advance=0 if exact else 1, description=printable(image.name[-24:])),
            weights=digest,
        )
    console = Console()
    if summary.done and not silent:
        console.print(predict_files.table(file_predictor, summary))
    for note in predict_files.notes(file_predictor, inputs, summary, out):
        console.print(printable(note), markup=False, highlight=False, soft_wrap=True)
    for row in summary.failed:
        typer.echo(f"ham: {printable(row['reason'])}", err=True)
    if summary.failed and not torchrun:  # which would stop the other processes
        raise typer.Exit(2)
    if not summary.left:
        suggest(f"ham app {weights}", f"ham export {weights} --format onnx --out net.onnx")


def _no_bar(**progress: Any) -> None:
    pass
