"""One or several named grids in one queue: what is left to run, and whose rows a finished run belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hamburger.engine.ablation import AblationCell, ablation_cells, joined
from hamburger.engine.ablation_rows import (
    Row,
    check_rows,
    forget_results_without_weights,
    join_rows,
    read_rows,
    still_to_run,
)
from hamburger.engine.grid import Cell, check_grid, finished, rows
from hamburger.errors import OptionError
from hamburger.files import check_writable

PLACE = "{grid}"


class Part(NamedTuple):
    """One grid: all its cells, those that have no row yet, and the file of its rows."""

    cells: list[AblationCell]
    left: list[AblationCell]
    path: Path | None

    def join(self, found: Sequence[Row]) -> None:
        if self.path is not None and found:
            join_rows(self.path, found, list(dict.fromkeys(cell.variant for cell in self.cells)))


@dataclass(frozen=True)
class Plan:
    """Trainings that several grids have in common are run once."""

    parts: list[Part]
    out: Path

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        recipe: str,
        out: Path,
        *,
        seeds: Sequence[int],
        settings: Sequence[str] = (),
        only: Sequence[str] = (),
        json: str | None = None,
    ) -> Plan:
        """All checked, nothing written. `json` is the file of the rows, `{grid}` in it the name of the grid."""
        if not names or len(set(names)) != len(names):
            raise OptionError(f"ablate: give each grid once, and at least one, got {list(names)}")
        if len(names) > 1 and only:
            raise OptionError("ablate: cells are named for one grid; leave out --cells, or name one grid")
        if len(names) > 1 and json is not None and PLACE not in json:
            raise OptionError(
                f"ablate: several grids have a file of rows each, got --json {json}; put {PLACE} where the name belongs"
            )
        parts = []
        for name in names:
            grid = ablation_cells(name, recipe, seeds=seeds, settings=settings, only=only)
            check_grid(grid, out, call="ablate")
            path = None if json is None else Path(json.replace(PLACE, name))
            if path is not None:
                check_rows(path, grid)
            parts.append(Part(grid, grid if path is None else still_to_run(path, grid, out), path))
        return cls(parts, out)

    @property
    def left(self) -> list[AblationCell]:
        """What is to be run: seeds outermost, so that what is cut short compares all cells; each folder once."""
        cells = [cell for part in self.parts for cell in part.left]
        seeds = list(dict.fromkeys(cell.seed for cell in cells))
        ordered = sorted(cells, key=lambda cell: seeds.index(cell.seed))
        return list({cell.name: cell for cell in ordered}.values())

    @property
    def queue(self) -> list[AblationCell]:
        """The same as processes to start: evaluations of one network together."""
        return joined([cell for cell in self.left if not finished(cell, self.out)])

    def states(self) -> Iterator[tuple[AblationCell, bool]]:
        """Every cell once, and whether it is finished."""
        left = {cell.name for cell in self.left}
        cells = {cell.name: cell for part in self.parts for cell in part.cells}
        for cell in cells.values():
            yield cell, cell.name not in left or finished(cell, self.out)

    def begin(self) -> None:
        """Rows of what another call has finished; then only what runs adds some."""
        for part in self.parts:
            if part.path is not None:
                check_writable(part.path)
        forget_results_without_weights(self.left, self.out)
        for part in self.parts:
            part.join(rows(part.left, self.out))

    def note(self, cell: Cell) -> None:
        """A run is finished: its rows go into the file of every grid that has it, at once."""
        for part in self.parts:
            part.join(rows([own for own in part.left if own.name in cell.names], self.out))

    def rows(self) -> list[list[Row]]:
        """All there are, grid by grid."""
        return [rows(part.cells, self.out) if part.path is None else read_rows(part.path) for part in self.parts]
