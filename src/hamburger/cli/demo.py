"""`ham demo`: the main job on the embedded data, from nothing to a page with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RECIPES = ("patchwork", "patchwork-glyphs")


def demo(
    out: Annotated[Path, typer.Option(help="a folder for the runs and report.html")] = Path("runs/demo"),
    recipe: Annotated[str, typer.Option(help=f"one of: {', '.join(RECIPES)}")] = "patchwork",
    contexts: Annotated[str, typer.Option(help="with commas, as in `ham compare`")] = "baseline,nmf,cd,sa",
    seeds: Annotated[str, typer.Option(help="with commas")] = "0,1",
    steps: Annotated[int | None, typer.Option(help="of training; default: the recipe's")] = None,
    jobs: Annotated[int, typer.Option(help="runs at once")] = 2,
) -> None:
    """Train HamNet, its baseline and a rival on generated scenes; a table, and a page with pictures."""
    from hamburger.cli.compare import show_grid
    from hamburger.cli.output import numbers, words
    from hamburger.errors import HamburgerError, check_choice
    from hamburger.tasks.compare import variants
    from hamburger.tasks.sweep import cells

    check_choice("demo", "recipe", recipe, RECIPES)
    shared = [] if steps is None else [f"steps={steps}"]
    own = numbers(seeds, "demo", "seeds")
    try:
        show_grid(cells(recipe, variants(words(contexts)), own, shared), out, jobs=jobs)
    except HamburgerError as error:  # a demo is a comparison, but nobody asked for one by that name
        if not str(error).startswith("compare: "):
            raise
        raise type(error)(f"demo: {str(error).removeprefix('compare: ')}") from error
