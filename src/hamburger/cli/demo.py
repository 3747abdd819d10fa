"""`ham demo`: the main job on the embedded data, from nothing to a page with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RECIPES = ("patchwork", "patchwork-glyphs")


def demo(
    out: Annotated[Path, typer.Option(help="a folder for the runs and report.html")] = Path("runs/demo"),
    recipe: Annotated[str, typer.Option(help=f"one of: {', '.join(RECIPES)}")] = "patchwork",
    contexts: Annotated[str, typer.Option(help="with commas, as in `ham compare`")] = "baseline,nmf,sa",
    seeds: Annotated[str, typer.Option(help="with commas")] = "0,1",
    steps: Annotated[int | None, typer.Option(help="of training; default: the recipe's")] = None,
    jobs: Annotated[int, typer.Option(help="runs at once")] = 2,
) -> None:
    """Train HamNet, its baseline and a rival on generated scenes; a table, and a page with pictures."""
    from hamburger.cli.bench import numbers, words
    from hamburger.cli.grid import show_grid
    from hamburger.engine.grid import cells
    from hamburger.errors import check_choice
    from hamburger.recipes.variants import variants

    check_choice("demo", "recipe", recipe, RECIPES)
    shared = [] if steps is None else [f"steps={steps}"]
    show_grid(cells(recipe, variants(words(contexts)), numbers(seeds), shared), out, jobs=jobs)
