"""`ham app`: explore what a network computes for a photo, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.output import WEIGHTS_HELP, Device
from hamburger.startup import interrupt_on_sigterm


def explore(
    weights: Annotated[Path, typer.Argument(metavar="[WEIGHTS]", help=WEIGHTS_HELP)] = Path("hamnet-lite0-voc"),
    compare: Annotated[Path | None, typer.Option(help="second weights, to show next to the first")] = None,
    host: Annotated[str, typer.Option(help="address to listen on; others open the page to the network")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 7860,
    device: Device = "auto",
) -> None:
    """Explore labels, atoms and spectra of a photo in the browser."""
    from hamburger.app.explain import Model
    from hamburger.app.page import serve
    from hamburger.devices import pick_device

    interrupt_on_sigterm()  # uploads are deleted then, too
    models = [Model.open(name, pick_device(device)) for name in (weights, compare) if name is not None]
    serve(models, host=host, port=port, ready=lambda address: typer.echo(f"open {address} (Ctrl-C stops)"))
