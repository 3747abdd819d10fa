"""`ham app`: explore what a network computes for a photo, in the browser."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.output import WEIGHTS_HELP, Device

DEFAULT = "hamnet-lite0-voc"


def explore(
    weights: Annotated[Path, typer.Argument(metavar="[WEIGHTS]", help=WEIGHTS_HELP)] = Path(DEFAULT),
    compare: Annotated[
        Path | None, typer.Option(help="second weights of the same task, shown next to the first")
    ] = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; any other lets other machines upload files")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 7860,
    device: Device = "auto",
) -> None:
    """Explore labels, atoms and spectra of a photo in the browser."""
    from hamburger.app.explain import Model
    from hamburger.app.page import serve
    from hamburger.tensors import pick_device

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # uploads are deleted then, too
    models = [Model.open(name, pick_device(device)) for name in (weights, compare) if name is not None]
    serve(models, host=host, port=port, ready=lambda address: typer.echo(f"open {address} (Ctrl-C stops)"))
