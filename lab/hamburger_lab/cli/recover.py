"""`ham recover`: the core at work on a matrix that one can look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def recover(
    out: Annotated[Path, typer.Option(help="where recovery.png and recovery.json go")] = Path("runs/recover"),
    rank: Annotated[int, typer.Option(help="of the scene, and of the hams")] = 6,
    noise: Annotated[float, typer.Option(help="standard deviation, for values between 0 and 1")] = 0.25,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Recover a low-rank scene from noise by NMF, VQ and CD, beside a truncated SVD."""
    from rich.console import Console

    from hamburger.errors import OptionError, check_count, check_positive, check_seed
    from hamburger.files import check_writable, write_atomically
    from hamburger_lab import recovery
    from hamburger_lab.recovery import BANDS, patchwork
    from hamburger_lab.recovery import recover as recover_scene

    check_count("recover", "rank", rank, least=2)
    if rank > BANDS:
        raise OptionError(f"recover: the scene has {BANDS} bands, so its rank is at most that, got {rank}")
    check_positive("recover", "noise", noise)
    check_seed("recover", seed)
    check_writable(out / "recovery.png")
    scene = patchwork(rank=rank, noise=noise, seed=seed)
    found = recover_scene(scene, rank=rank, seed=seed)
    console = Console()
    console.print(recovery.table(found))
    write_atomically(out / "recovery.png", recovery.picture(scene, found))
    write_atomically(out / "recovery.json", recovery.as_json(found, rank=rank, noise=noise, seed=seed))
    console.print(f"wrote {out / 'recovery.png'} and {out / 'recovery.json'}", soft_wrap=True)
