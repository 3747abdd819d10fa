"""`ham export`: write a trained network as an ONNX or pt2 file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hamburger.cli.output import WeightsPath, parse_ints, suggest
from hamburger.startup import interrupt_on_sigterm


def export(
    weights: WeightsPath,
    format: Annotated[str, typer.Option(help="onnx or pt2")],
    out: Annotated[Path, typer.Option(help="the file to write")],
    size: Annotated[
        str | None,
        typer.Option(help="size of the test image in pixels: side, or height,width; default: by the task"),
    ] = None,
    image: Annotated[Path | None, typer.Option(help="compare on this image; default: a generated one")] = None,
    tolerance: Annotated[
        float,
        typer.Option(help="largest allowed difference of logits (disparities, scores), relative to the largest value"),
    ] = 1e-3,
    static: Annotated[bool, typer.Option("--static", help="fix batch, height and width")] = False,
) -> None:
    """Write a trained network as ONNX or pt2, after comparing the file's output with torch's."""
    from rich.console import Console

    from hamburger.errors import OptionError
    from hamburger.inference.export import export as write
    from hamburger.inference.find_weights import find_weights
    from hamburger.tasks import task_of_weights

    interrupt_on_sigterm()
    sides = parse_ints(size, "export", "the sides of --size") if size is not None else ()
    if len(sides) > 2:
        raise OptionError(f"export: --size takes one side, or height,width (got {size!r})")
    requested = (sides[0], sides[-1]) if sides else None
    path = find_weights(weights)
    task = task_of_weights(path)
    net, info = task.load(path)
    with Console(stderr=True).status(f"exporting to {format}"):
        spec = task.export_spec(info)
        options: dict[str, Any] = {"size": requested, "image": image, "tolerance": tolerance, "static": static}
        exported = write(net, info, out, format=format, spec=spec, **options)
    for axis, length in zip(("batch", "height", "width"), (1, *exported.size), strict=True):
        if axis not in exported.dynamic:
            reason = "--static" if static else exported.refusals[-1]
            typer.echo(f"{axis} is fixed at {length}: {reason}")
    typer.echo(f"dynamic axes: {', '.join(exported.dynamic)}" if exported.dynamic else "all axes are fixed")
    typer.echo(f"against torch on {'a generated image' if image is None else image}: {exported.agreement}")
    typer.echo(f"wrote {exported.path} ({exported.path.stat().st_size / 1e6:.1f} MB)")
    call = "onnxruntime; onnxruntime.InferenceSession" if format == "onnx" else "torch; torch.export.load"
    suggest(f"""python -c "import {call}('{exported.path}')\"""")
