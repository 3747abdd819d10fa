"""`ham demo`: train on generated images and write a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RECIPES = ("patchwork", "patchwork-glyphs")


def demo(
    out: Annotated[Path, typer.Option(help="folder for the runs and report.html")] = Path("runs/demo"),
    recipe: Annotated[str, typer.Option(help=f"one of: {', '.join(RECIPES)}")] = "patchwork",
    contexts: Annotated[str, typer.Option(help="comma-separated, as in `ham compare`")] = "baseline,nmf,cd,sa",
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1",
    steps: Annotated[int | None, typer.Option(help="training steps; default: the recipe's")] = None,
    jobs: Annotated[int, typer.Option(help="number of runs at the same time")] = 2,
) -> None:
    """Train HamNet, its baseline and a rival on generated scenes; print a table and write a report."""
    from hamburger.cli.compare import run_and_show_grid
    from hamburger.cli.output import parse_ints, parse_names
    from hamburger.errors import HamburgerError, check_choice
    from hamburger.tasks.sweep import cells, variants

    check_choice("demo", "recipe", recipe, RECIPES)
    shared = [] if steps is None else [f"steps={steps}"]
    seed_list = parse_ints(seeds, "demo", "seeds")
    try:
        run_and_show_grid(cells(recipe, variants(parse_names(contexts)), seed_list, shared), out, jobs=jobs)
    except HamburgerError as error:  # the user called demo, not compare
        if not str(error).startswith("compare: "):
            raise
        raise type(error)(f"demo: {str(error).removeprefix('compare: ')}") from error
