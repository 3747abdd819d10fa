"""`ham report`: one HTML page about training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or folders of run folders")],
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("report.html"),
    data: Annotated[Path | None, typer.Option(help="data folder, to show images")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Compare training runs on one page: scores over seeds, curves, predictions, atoms, spectra."""
    from rich.console import Console

    from hamburger.report.page import write_report

    write_report(runs, out, data, device=device)
    Console().print(f"wrote {out}", soft_wrap=True, highlight=False)
