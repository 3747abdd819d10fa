"""`ham export`: a trained network as one file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    weights: Annotated[Path, typer.Argument(metavar="RUN_OR_WEIGHTS", help="a run folder or a .safetensors file")],
    format: Annotated[str, typer.Option(help="onnx or pt2")],
    out: Annotated[Path, typer.Option(help="the file to write")],
    size: Annotated[
        int | None, typer.Option(help="side of the image that the file is tried on, in pixels; default: by the task")
    ] = None,
    image: Annotated[Path | None, typer.Option(help="compare on this photograph; default: a generated picture")] = None,
    tolerance: Annotated[float, typer.Option(help="how far logits may differ, as a part of the largest")] = 1e-3,
) -> None:
    """Write a trained network as ONNX or pt2, after comparing the file's output with torch's."""
    from rich.console import Console

    from hamburger.errors import OptionError
    from hamburger.tasks import task_of_weights
    from hamburger.use.export import export as write
    from hamburger.use.source import find_weights

    path = find_weights(weights)
    task = task_of_weights(path)
    net, info = task.load(path)
    graph = task.graph(info)
    if graph is None:
        raise OptionError(f"export: a network for the task '{task.kind.task}' ({path}) does not leave torch")
    with Console(stderr=True).status(f"exporting to {format}"):
        made = write(net, info, out, format=format, size=size, image=image, tolerance=tolerance, graph=graph)
    for axis in ("batch", "height", "width"):
        if axis not in made.dynamic:
            fixed = 1 if axis == "batch" else made.size[0]
            typer.echo(f"{axis} is fixed at {fixed}: {made.refusals[-1]}")
    typer.echo(f"any {', '.join(made.dynamic)}" if made.dynamic else "no axis is free")
    typer.echo(f"against torch on {'a generated picture' if image is None else image}: {made.agreement}")
    typer.echo(f"wrote {made.path} ({made.path.stat().st_size / 1e6:.1f} MB)")
