"""`ham propositions`: measure what section 2.3 of the paper assumes, on small decompositions."""

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
        bool, typer.Option("--quick", help="a few seconds: fewer sweeps, no claim of convergence")
    ] = False,
) -> None:
    """Check section 2.3: contraction, spectrum, terms of Eq. 12, gradient angles; one table, one JSON, one figure."""
    import torch
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from hamburger.files import write_atomically
    from hamburger_lab.propositions.figure import draw
    from hamburger_lab.propositions.report import verdict_table
    from hamburger_lab.propositions.study import QUICK, Protocol, as_json, study

    if seeds is not None:
        check_count("propositions", "seeds", seeds, least=1)
    protocol = QUICK if quick else Protocol()
    protocol = protocol if seeds is None else replace(protocol, seeds=seeds)
    out.mkdir(parents=True, exist_ok=True)  # before the work, so that a bad folder costs no time

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are too small to share among cores
    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("solves", total=None)
            result = study(protocol, lambda done, total: bar.update(task, completed=done, total=total))
    finally:
        torch.set_num_threads(threads)

    write_atomically(out / "propositions.json", as_json(result).encode())
    draw(result, out / "propositions.png")
    header, lines = verdict_table(result)
    table = Table(*header, title="seeds where the claim holds / seeds it speaks of")
    for line in lines:
        table.add_row(*line)
    console = Console()
    console.print(table)
    console.print(f"wrote {out / 'propositions.json'} and {out / 'propositions.png'}", soft_wrap=True)
