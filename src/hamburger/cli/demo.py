"""`ham demo`: the core at work on a matrix that one can look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="where recovery.png and recovery.json go")] = Path("runs/demo"),
    rank: Annotated[int, typer.Option(help="of the scene, and of the hams")] = 6,
    noise: Annotated[float, typer.Option(help="standard deviation, for values between 0 and 1")] = 0.25,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Recover a low-rank scene from noise by NMF, VQ and CD, beside a truncated SVD."""
    from rich.console import Console

    from hamburger.demo import report
    from hamburger.demo.recovery import recover
    from hamburger.demo.scene import patchwork
    from hamburger.errors import check_count, check_positive
    from hamburger.files import write_atomically

    check_count("demo", "rank", rank, least=2)
    check_positive("demo", "noise", noise)
    scene = patchwork(rank=rank, noise=noise, seed=seed)
    found = recover(scene, rank=rank, seed=seed)
    console = Console()
    console.print(report.table(found))
    write_atomically(out / "recovery.png", report.picture(scene, found))
    write_atomically(out / "recovery.json", report.as_json(found, rank=rank, noise=noise, seed=seed))
    console.print(f"wrote {out / 'recovery.png'} and {out / 'recovery.json'}", soft_wrap=True)
