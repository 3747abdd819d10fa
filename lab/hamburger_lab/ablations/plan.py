"""Run one or several grids: which cells remain, in what order, and the files of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hamburger.errors import OptionError
from hamburger.files import check_writable, write_json_lines
from hamburger.tasks.sweep import Cell, check_grid, finished, rows
from hamburger.training.recipe import digest
from hamburger.training.run_folder import BEST, RESULT
from hamburger_lab.ablations.cells import AblationCell, ablation_cells, group_evaluations
from hamburger_lab.rows import read_json_lines

GRID_FIELD = "{grid}"  # replaced by the name of the grid in --json and --csv


class GridPart(NamedTuple):
    """One grid: all its cells, those that have no row yet, and the file of its rows."""

    cells: list[AblationCell]
    remaining: list[AblationCell]
    path: Path | None

    def write_rows(self, new_rows: Sequence[Row]) -> None:
        if self.path is not None and new_rows:
            merge_rows(self.path, new_rows, list(dict.fromkeys(cell.variant for cell in self.cells)))


@dataclass(frozen=True)
class AblationPlan:
    """The cells of several grids; a training that several grids share runs once."""

    parts: list[GridPart]
    out: Path

    @classmethod
    def create(
        cls,
        names: Sequence[str],
        recipe: str,
        out: Path,
        *,
        seeds: Sequence[int],
        settings: Sequence[str] = (),
        only: Sequence[str] = (),
        json: str | None = None,
    ) -> AblationPlan:
        """Return the checked plan; writes nothing. `json`: file of the rows, with `{grid}` for the name of the grid."""
        if not names or len(set(names)) != len(names):
            raise OptionError(f"ablate: give each grid once, and at least one, got {list(names)}")
        if len(names) > 1 and only:
            raise OptionError("ablate: --cells needs a single grid; leave it out, or name one grid")
        if len(names) > 1 and json is not None and GRID_FIELD not in json:
            raise OptionError(
                f"ablate: several grids need several files (got --json {json}); put {GRID_FIELD} where the name belongs"
            )
        parts = []
        for name in names:
            grid = ablation_cells(name, recipe, seeds=seeds, settings=settings, only=only)
            check_grid(grid, out, call="ablate")
            path = None if json is None else Path(json.replace(GRID_FIELD, name))
            if path is not None:
                check_rows(path, grid)
            parts.append(GridPart(grid, grid if path is None else still_to_run(path, grid, out), path))
        return cls(parts, out)

    @property
    def remaining(self) -> list[AblationCell]:
        """Return the cells to run, each folder once; seeds outermost, so an interrupted grid compares all cells."""
        cells = [cell for part in self.parts for cell in part.remaining]
        seeds = list(dict.fromkeys(cell.seed for cell in cells))
        ordered = sorted(cells, key=lambda cell: seeds.index(cell.seed))
        return list({cell.name: cell for cell in ordered}.values())

    @property
    def queue(self) -> list[AblationCell]:
        """Return the processes to start: evaluations of one network are grouped."""
        return group_evaluations([cell for cell in self.remaining if not finished(cell, self.out)])

    def states(self) -> Iterator[tuple[AblationCell, bool]]:
        """Yield every cell once, and whether it is finished."""
        remaining = {cell.name for cell in self.remaining}
        cells = {cell.name: cell for part in self.parts for cell in part.cells}
        for cell in cells.values():
            yield cell, cell.name not in remaining or finished(cell, self.out)

    def begin(self) -> None:
        """Write the rows of cells that an earlier call has finished."""
        for part in self.parts:
            if part.path is not None:
                check_writable(part.path)
        delete_results_without_weights(self.remaining, self.out)
        for part in self.parts:
            part.write_rows(rows(part.remaining, self.out))

    def write_finished(self, cell: Cell) -> None:
        """Write the rows of a finished run into the file of every grid that has it."""
        for part in self.parts:
            part.write_rows(rows([member for member in part.remaining if member.name in cell.names], self.out))

    def rows(self) -> list[list[Row]]:
        """Return all rows, grid by grid."""
        return [rows(part.cells, self.out) if part.path is None else read_rows(part.path) for part in self.parts]


# -- the file of an ablation's rows -----------------------------------------------------------------------------------

Row = dict[str, Any]
KEYS = {"ablation", "recipe", "settings", "cell", "seed", "recipe_hash"}


def read_rows(path: Path) -> list[Row]:
    return read_json_lines(path, "ablate")


def check_rows(path: Path, grid: Sequence[AblationCell]) -> None:
    """Raise OptionError if the file holds rows of another grid, recipe or settings."""
    cell = grid[0]
    expected = (cell.ablation, cell.recipe, list(cell.settings))
    for row in read_rows(path):
        if not row.keys() >= KEYS:
            raise OptionError(
                f"ablate: {path} has rows that are not from an ablation (no {', '.join(sorted(KEYS - row.keys()))}); "
                f"name another file with --json"
            )
        present = (row["ablation"], row["recipe"], row["settings"])
        if present != expected:
            raise OptionError(
                f"ablate: {path} has rows of '{present[0]}' from recipe '{present[1]}' with {present[2]}; this call "
                f"makes '{expected[0]}' from '{expected[1]}' with {expected[2]}; "
                "use the same settings, or name another file with --json"
            )


def still_to_run(path: Path, grid: Sequence[AblationCell], out: Path) -> list[AblationCell]:
    """Return the cells that have no row yet, so that a grid can resume without its run folders.

    An evaluation needs weights. If they are gone too, their training runs again with all its evaluations, so that rows
    of one training use the same weights.
    """
    present = {(row["cell"], row["seed"], row["recipe_hash"]) for row in read_rows(path)}
    missing = {cell for cell in grid if (cell.variant, cell.seed, digest(cell.resolved())) not in present}
    weights = {cell.needs for cell in missing if cell.needs is not None and not (out / cell.needs / BEST).exists()}
    return [cell for cell in grid if cell in missing or cell.name in weights or cell.needs in weights]


def delete_results_without_weights(grid: Sequence[AblationCell], out: Path) -> None:
    """Delete results whose weights are needed but missing, so that they are trained again."""
    for needed in {cell.needs for cell in grid if cell.needs is not None and not (out / cell.name / RESULT).exists()}:
        if not (out / needed / BEST).exists():
            (out / needed / RESULT).unlink(missing_ok=True)


def merge_rows(path: Path, rows: Sequence[Row], order: Sequence[str] = ()) -> None:
    """Add rows to the file in place of older ones of the same cell and seed; sort by seed and cell, as in `order`."""
    merged = {(row["seed"], row["cell"]): row for row in (*read_rows(path), *rows)}
    position = {cell: i for i, cell in enumerate(dict.fromkeys((*order, *(cell for _, cell in merged))))}
    write_json_lines(path, [merged[key] for key in sorted(merged, key=lambda key: (key[0], position[key[1]]))])
