"""Many runs side by side, each a process with its own run folder: finished ones are skipped, broken ones resume."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from hamburger.engine.folder import RECIPE, RESULT, in_use
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.processes import Fresh, Running, Warm
from hamburger.errors import HamburgerError, OptionError, check_count
from hamburger.recipes.base import Training
from hamburger.recipes.codec import differences, read_recipe
from hamburger.recipes.find import find_training
from hamburger.recipes.kinds import kind_of
from hamburger.recipes.overrides import apply


class GridError(HamburgerError, RuntimeError):
    """Some runs of a grid failed; the others are finished and kept."""


@dataclass(frozen=True)
class Cell:
    """One run: `name` is its folder, `variant` what its row is called."""

    variant: str
    recipe: str
    seed: int
    overrides: tuple[str, ...] = ()
    verb: ClassVar[tuple[str, ...]] = ("train",)  # of the command that runs it

    @property
    def name(self) -> str:
        return f"{self.variant}-seed{self.seed}"

    @property
    def names(self) -> tuple[str, ...]:
        """All folders that get a result by its command."""
        return (self.name,)

    @property
    def needs(self) -> str | None:
        """The name of the cell that must be finished before this one starts."""
        return None

    def resolved(self) -> Training:
        """The recipe, checked."""
        recipe = replace(apply(find_training(self.recipe), self.overrides), seed=self.seed)
        kind_of(recipe).check(recipe, processes=1)
        return recipe

    def command(self, out: Path, data: Path | None) -> list[str]:
        """The same command that a person would type."""
        run = out / self.name
        words = [sys.executable, "-m", "hamburger", *self.verb, self.recipe]
        words += ["--run", str(run), "--seed", str(self.seed)]
        for override in self.overrides:
            words += ["--set", override]
        if data is not None:
            words += ["--data", str(data)]
        return [*words, "--resume"] if (run / RECIPE).exists() else words

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        """What `results/<task>_<data>_*.jsonl` holds of a run."""
        # the variant's name last: breads without a ham are a setting of some context, not that context
        return {"recipe": self.recipe, **result, "context": self.variant, "overrides": list(self.overrides)}


C = TypeVar("C", bound=Cell)


def cells(recipe: str, variants: dict[str, tuple[str, ...]], seeds: Sequence[int], shared: Sequence[str]) -> list[Cell]:
    """Every variant with every seed, seeds outermost, so that what is cut short still compares all variants."""
    return cells_of(Cell, recipe, variants, seeds, shared)


def cells_of(
    kind: type[C],
    recipe: str,
    variants: dict[str, tuple[str, ...]],
    seeds: Sequence[int],
    shared: Sequence[str],
    *,
    call: str = "compare",
) -> list[C]:
    """The same, of another kind of training."""
    for option, values in (("variant", list(variants)), ("seed", list(seeds))):
        if not values or len(set(values)) != len(values):
            raise OptionError(f"{call}: give each {option} once, and at least one, got {values}")
    return [kind(name, recipe, seed, (*shared, *own)) for seed in seeds for name, own in variants.items()]


def command(cell: Cell, out: Path, data: Path | None) -> list[str]:
    return cell.command(out, data)


def check_grid(grid: Sequence[Cell], out: Path, *, call: str = "compare") -> None:
    """Before any work: every recipe can run, and what lies in the folder came of the same ones."""
    for cell in grid:
        wanted = cell.resolved()
        stored = out / cell.name / RECIPE
        changed = differences(wanted, read_recipe(stored.read_text(), type(wanted))) if stored.exists() else []
        if changed:
            raise OptionError(
                f"{call}: the run in {stored.parent} was made with another recipe ({'; '.join(changed)}); "
                f"give the same settings, or name another folder with --out"
            )


def run_grid(
    grid: Sequence[Cell],
    out: Path,
    *,
    data: Path | None = None,
    jobs: int = 1,
    command: Callable[[Cell, Path, Path | None], list[str]] = command,
    progress: Callable[[int, dict[str, int]], object] = lambda *_: None,
    done: Callable[[Cell], object] = lambda cell: None,
    warm: bool | None = None,
    call: str = "compare",
) -> list[dict[str, Any]]:
    """Run every cell that has no result yet, `jobs` at a time; the rows of all of them, in the order of the grid.

    `progress` hears how many are done, and the step that each running one has reached; `done` hears of each that has
    its result, at once. One that fails leaves the others alone and is named at the end, with those that needed it. An
    interrupt goes on to the running ones, which save where they are. What runs of a killed call still work on is waited
    for: they outlive it, and end with their results. `warm` processes take one run after another; None:
    where there is a card, on which memory is counted by run and not by process. `call` is who speaks in an error.
    """
    check_count(call, "jobs", jobs, least=1)
    check_grid(grid, out, call=call)
    out.mkdir(parents=True, exist_ok=True)
    waiting = [cell for cell in grid if not finished(cell, out)]
    ended = len(grid) - len(waiting)
    processes = Warm(jobs) if (torch.cuda.is_available() if warm is None else warm) else Fresh(jobs)
    running: dict[Cell, Running] = {}
    failed: list[str] = []

    def fill() -> None:
        while len(running) < jobs and (cell := next((cell for cell in waiting if _ready(cell, out)), None)):
            waiting.remove(cell)
            running[cell] = processes.start(command(cell, out, data), _log(out, cell))

    with StopRequest() as stop:
        try:
            while waiting or running:
                if stop:
                    raise KeyboardInterrupt
                fill()
                results: list[Cell] = []
                for cell, process in list(running.items()):
                    status = process.poll()
                    if status is None:
                        continue
                    del running[cell]
                    ended += 1
                    if status or not finished(cell, out):
                        failed.append(f"{cell.name} (exit {status}): {_last_line(_log(out, cell))}")
                    else:
                        results.append(cell)
                if jobs > 1:  # `done` may take long; one run at a time is alone, and nothing else slows it down
                    fill()
                for cell in results:
                    done(cell)
                if not running and not any(_ready(cell, out) or in_use(out / cell.name) for cell in waiting):
                    failed += [f"{cell.name}: needs {cell.needs}, which has no result" for cell in waiting]
                    waiting.clear()
                progress(ended, {cell.name: _step(out / cell.name / "metrics.jsonl") for cell in running})
                time.sleep(0.1)
        finally:
            for process in running.values():
                process.terminate()  # not SIGINT, which what is started in the background may have been told to ignore
            for process in running.values():
                process.wait()
            processes.close()
    if failed:
        raise GridError(f"{call}: {len(failed)} of {len(grid)} runs failed, the others are kept: " + "; ".join(failed))
    return rows(grid, out)


def finished(cell: Cell, out: Path) -> bool:
    return all((out / name / RESULT).exists() for name in cell.names)


def rows(grid: Sequence[Cell], out: Path) -> list[dict[str, Any]]:
    """Those of the finished cells, in the order of the grid."""
    return [cell.row(json.loads((out / cell.name / RESULT).read_text())) for cell in grid if finished(cell, out)]


def _ready(cell: Cell, out: Path) -> bool:
    return (cell.needs is None or (out / cell.needs / RESULT).exists()) and not in_use(out / cell.name)


def _log(out: Path, cell: Cell) -> Path:
    return out / "logs" / f"{cell.name}.txt"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _step(metrics: Path) -> int:
    """The last step that a run has written; what it is writing right now does not count."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - 4096))
        for line in reversed(file.read().split(b"\n")):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue
    return 0
