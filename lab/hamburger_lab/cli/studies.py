"""`ham propositions` and `ham recover`: small studies of the decompositions alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hamburger.errors import check_count


def propositions(
    out: Annotated[Path, typer.Option(help="folder for propositions.json and propositions.png")] = Path(
        "runs/propositions"
    ),
    seeds: Annotated[int | None, typer.Option(help="seeds per case; 5, or 1 with --quick", show_default=False)] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="takes a few seconds: fewer seeds and steps, far from convergence")
    ] = False,
) -> None:
    """Measure the assumptions of section 2.3 on small solves; write a table, a JSON file and a figure."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from hamburger.cli.output import progress_bar, suggest
    from hamburger.files import write_atomically
    from hamburger_lab.propositions.figure import draw_study
    from hamburger_lab.propositions.report import verdict_table
    from hamburger_lab.propositions.study import QUICK, StudyProtocol, as_json, run_study

    if seeds is not None:
        check_count("propositions", "seeds", seeds, least=1)
    protocol = QUICK if quick else StudyProtocol()
    protocol = protocol if seeds is None else replace(protocol, seeds=seeds)
    out.mkdir(parents=True, exist_ok=True)  # fail before the work

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are too small to share among cores
    try:
        with progress_bar("solves") as update:
            result = run_study(protocol, lambda done, total: update(completed=done, total=total))
    finally:
        torch.set_num_threads(threads)

    write_atomically(out / "propositions.json", as_json(result).encode())
    draw_study(result, out / "propositions.png")
    header, lines = verdict_table(result)
    table = Table(*header, title="seeds where the claim holds / seeds to which it applies")
    for line in lines:
        table.add_row(*line)
    console = Console()
    console.print(table)
    console.print(f"wrote {out / 'propositions.json'} and {out / 'propositions.png'}", soft_wrap=True)
    suggest("ham claims")


# -- `ham recover` ----------------------------------------------------------------------------------------------------


def recover(
    out: Annotated[Path, typer.Option(help="folder for recovery.png and recovery.json")] = Path("runs/recover"),
    rank: Annotated[int, typer.Option(help="rank of the scene and of the hams")] = 6,
    noise: Annotated[
        float, typer.Option(help="standard deviation of the noise; the scene has values between 0 and 1")
    ] = 0.25,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Recover a low-rank scene from noise with NMF, VQ and CD, and with a truncated SVD for comparison."""
    from rich.console import Console

    from hamburger.cli.output import suggest
    from hamburger.errors import OptionError, check_count, check_positive, check_seed
    from hamburger.files import check_writable, write_atomically
    from hamburger_lab import recovery
    from hamburger_lab.recovery import BANDS, make_scene
    from hamburger_lab.recovery import recover as recover_scene

    check_count("recover", "rank", rank, least=2)
    if rank > BANDS:
        raise OptionError(f"recover: rank must be at most {BANDS}, the number of bands (got {rank})")
    check_positive("recover", "noise", noise)
    check_seed("recover", seed)
    check_writable(out / "recovery.png")
    scene = make_scene(rank=rank, noise=noise, seed=seed)
    recoveries = recover_scene(scene, rank=rank, seed=seed)
    console = Console()
    console.print(recovery.recovery_table(recoveries))
    write_atomically(out / "recovery.png", recovery.recovery_image(scene, recoveries))
    write_atomically(out / "recovery.json", recovery.as_json(recoveries, rank=rank, noise=noise, seed=seed))
    console.print(f"wrote {out / 'recovery.png'} and {out / 'recovery.json'}", soft_wrap=True)
    suggest("ham propositions")
