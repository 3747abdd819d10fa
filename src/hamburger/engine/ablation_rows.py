"""The file of an ablation's rows: one line per run, joined over calls, of one kind of training only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hamburger.engine.ablation import AblationCell
from hamburger.engine.folder import BEST, RESULT
from hamburger.errors import OptionError
from hamburger.files import read_json_lines, write_json_lines
from hamburger.recipes.codec import digest

Row = dict[str, Any]
KEYS = {"ablation", "recipe", "settings", "cell", "seed", "recipe_hash"}


def read_rows(path: Path) -> list[Row]:
    return read_json_lines(path, "ablate")


def check_rows(path: Path, grid: Sequence[AblationCell]) -> None:
    """Before any work: cells of other settings are no neighbours in a table."""
    cell = grid[0]
    wanted = (cell.ablation, cell.recipe, list(cell.settings))
    for row in read_rows(path):
        if not row.keys() >= KEYS:
            raise OptionError(
                f"ablate: {path} holds rows that are none of an ablation (no {', '.join(sorted(KEYS - row.keys()))}); "
                f"name another file with --json"
            )
        found = (row["ablation"], row["recipe"], row["settings"])
        if found != wanted:
            raise OptionError(
                f"ablate: {path} holds rows of '{found[0]}' from recipe '{found[1]}' with {found[2]}, these would be "
                f"'{wanted[0]}' from '{wanted[1]}' with {wanted[2]}; give the same, or name another file with --json"
            )


def still_to_run(path: Path, grid: Sequence[AblationCell], out: Path) -> list[AblationCell]:
    """Cells that have no row yet, so that a grid can go on where its run folders are gone.

    An evaluation needs weights: where those are gone too, their training is run again with all its evaluations, since
    rows of one training should speak of the same weights.
    """
    had = {(row["cell"], row["seed"], row["recipe_hash"]) for row in read_rows(path)}
    missing = {cell for cell in grid if (cell.variant, cell.seed, digest(cell.resolved())) not in had}
    weights = {cell.needs for cell in missing if cell.needs is not None and not (out / cell.needs / BEST).exists()}
    return [cell for cell in grid if cell in missing or cell.name in weights or cell.needs in weights]


def forget_results_without_weights(grid: Sequence[AblationCell], out: Path) -> None:
    """Where a result is there and its weights are gone, whoever needs them has it made again."""
    for needed in {cell.needs for cell in grid if cell.needs is not None and not (out / cell.name / RESULT).exists()}:
        if not (out / needed / BEST).exists():
            (out / needed / RESULT).unlink(missing_ok=True)


def join_rows(path: Path, rows: Sequence[Row], order: Sequence[str] = ()) -> None:
    """Put these beside what is there, in place of older ones of the same cell and seed.

    In order of seed, then of cell: as `order` has them, then as they came.
    """
    joined = {(row["seed"], row["cell"]): row for row in (*read_rows(path), *rows)}
    place = {cell: at for at, cell in enumerate(dict.fromkeys((*order, *(cell for _, cell in joined))))}
    write_json_lines(path, [joined[key] for key in sorted(joined, key=lambda key: (key[0], place[key[1]]))])
