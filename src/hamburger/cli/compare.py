"""`ham compare`: one recipe with several contexts and seeds, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    recipe: Annotated[str, typer.Argument(help="a name of `ham list recipes`")],
    out: Annotated[Path, typer.Option(help="a folder for the runs, their logs and report.html")],
    contexts: Annotated[
        str, typer.Option(help="with commas; also baseline (or none), breads (no ham), sa-flash and sa-materialised")
    ] = "baseline,nmf",
    seeds: Annotated[str, typer.Option(help="with commas")] = "0,1,2",
    data: Annotated[Path | None, typer.Option(help="the data folder")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="an override such as steps=500")] = None,
    jobs: Annotated[int, typer.Option(help="runs at once")] = 1,
    json: Annotated[Path | None, typer.Option(help="also write the rows here, one JSON object per line")] = None,
    report: Annotated[bool, typer.Option(help="write report.html")] = True,
) -> None:
    """Train every context with every seed; skip what is finished, resume what broke off."""
    from hamburger.cli.grid import show_grid
    from hamburger.cli.lists import numbers, words
    from hamburger.engine.grid import cells
    from hamburger.files import check_writable
    from hamburger.recipes.variants import variants

    if json is not None:
        check_writable(json)
    grid = cells(recipe, variants(words(contexts)), numbers(seeds, "compare", "seeds"), settings or ())
    show_grid(grid, out, data=data, jobs=jobs, report=report, json=json)
