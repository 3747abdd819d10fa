"""`ham pictures`: feature maps and atoms of trained networks, into a file for the page of claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pictures(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders or .safetensors files")],
    json: Annotated[Path, typer.Option(help="the file to write, such as results/pictures_<data>_<hardware>.json")],
    data: Annotated[Path | None, typer.Option(help="the data folder; embedded sets need none")] = None,
    images: Annotated[int, typer.Option(help="how many, drawn by a fixed seed from the validation split")] = 2,
) -> None:
    """Channels before and after the context, and atoms of the ham; `ham claims --html` shows them."""
    from json import dumps

    from hamburger.errors import check_count
    from hamburger.files import check_writable, write_atomically
    from hamburger_lab.claims.pictures import make

    check_count("pictures", "images", images, least=1)
    check_writable(json)
    found = make(runs, data, images=images)
    write_atomically(json, (dumps(found) + "\n").encode())
    typer.echo(f"wrote {json}: {len(found['entries'])} images of {found['data']}")
