"""Many runs, each a process with its own run folder: finished ones are skipped, interrupted ones resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hamburger.contexts import list_contexts
from hamburger.errors import HamburgerError, OptionError, UnknownNameError, check_count, did_you_mean
from hamburger.files import read_text
from hamburger.kernels.dispatch import BACKEND_VARIABLE
from hamburger.tasks import find_training, task_of
from hamburger.training.recipe import Training, apply, differences, read_recipe
from hamburger.training.run_folder import RECIPE, RESULT, in_use, read_result
from hamburger.training.run_lifecycle import StopSignal
from hamburger.training.task import Task


class GridError(HamburgerError, RuntimeError):
    """Some runs of a grid failed; the results of the others are kept."""


@dataclass(frozen=True)
class Cell:
    """One run of a grid: `name` is its folder, `variant` the name of its row."""

    variant: str
    recipe: str
    seed: int
    overrides: tuple[str, ...] = ()
    verb: ClassVar[tuple[str, ...]] = ("train",)  # the `ham` command that runs it

    @property
    def name(self) -> str:
        return f"{self.variant}-seed{self.seed}"

    @property
    def names(self) -> tuple[str, ...]:
        """All folders that its command writes a result to."""
        return (self.name,)

    @property
    def needs(self) -> str | None:
        """The name of the cell that must be finished before this one starts."""
        return None

    @property
    def steps(self) -> int:
        """The number of training steps, by which progress is counted."""
        return self.resolved().steps

    def resolved(self) -> Training:
        """The recipe, checked."""
        recipe = replace(apply(find_training(self.recipe), self.overrides), seed=self.seed)
        task_of(recipe).check(recipe, processes=1)
        return recipe

    def command(self, out: Path, data: Path | None) -> list[str]:
        """The command line, as a user would type it."""
        run = out / self.name
        arguments = [sys.executable, "-m", "hamburger", *self.verb, self.recipe]
        arguments += ["--run", str(run), "--seed", str(self.seed)]
        for override in self.overrides:
            arguments += ["--set", override]
        if data is not None:
            arguments += ["--data", str(data)]
        return [*arguments, "--resume"] if (run / RECIPE).exists() else arguments

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        """The run's row in `results/<task>_<data>_*.jsonl`."""
        # the variant's name replaces the context's: breads without a ham are a setting of some context
        return {"recipe": self.recipe, **result, "context": self.variant, "overrides": list(self.overrides)}


C = TypeVar("C", bound=Cell)


def cells(
    recipe: str,
    variants: dict[str, tuple[str, ...]],
    seeds: Sequence[int],
    shared: Sequence[str],
    *,
    cell_class: type[C] = Cell,  # type: ignore[assignment]
    call: str = "compare",
) -> list[C]:
    """Every variant with every seed. Seeds are outermost, so an interrupted grid still compares all variants."""
    for option, values in (("variant", list(variants)), ("seed", list(seeds))):
        if not values or len(set(values)) != len(values):
            raise OptionError(f"{call}: give each {option} once, and at least one, got {values}")
    return [
        cell_class(name, recipe, seed, (*shared, *settings)) for seed in seeds for name, settings in variants.items()
    ]


def check_grid(grid: Sequence[Cell], out: Path, *, call: str = "compare") -> None:
    """Raise where a recipe cannot run, or the folder holds a run of another recipe."""
    for cell in grid:
        expected = cell.resolved()
        stored = out / cell.name / RECIPE
        if not stored.exists():
            continue
        changed = differences(expected, read_recipe(read_text(stored, call), type(expected), f"{call}: {stored}"))
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
    command: Callable[[Cell, Path, Path | None], list[str]] = lambda cell, out, data: cell.command(out, data),
    progress: Callable[[int, int, str], object] = lambda made, steps, runs: None,
    done: Callable[[Cell], object] = lambda cell: None,
    call: str = "compare",
) -> list[dict[str, Any]]:
    """Run every cell that has no result yet, `jobs` at a time; return the rows of all cells, in the grid's order.

    `progress` is called with the training steps made so far, those of the whole grid, and the number of finished runs
    in words; `done` with each cell as soon as it has its result. A cell that fails does not stop the others; the error
    at the end names it, and the cells that needed it. An interrupt is passed to the running processes, which save a
    checkpoint. Runs that an earlier, killed call started are still running: wait for their results. `call` starts error
    messages.
    """
    check_count(call, "jobs", jobs, least=1)
    check_grid(grid, out, call=call)
    (out / "logs").mkdir(parents=True, exist_ok=True)
    waiting = [cell for cell in grid if not finished(cell, out)]
    ended = len(grid) - len(waiting)
    environment = process_environment(jobs)
    steps = {cell: cell.steps for cell in grid}
    running: dict[Cell, subprocess.Popen[bytes]] = {}
    failed: list[str] = []

    def fill() -> None:
        while len(running) < jobs and (cell := next((cell for cell in waiting if _ready(cell, out)), None)):
            waiting.remove(cell)
            arguments = command(cell, out, data)
            with _log(out, cell).open("ab") as log:
                running[cell] = subprocess.Popen(
                    arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )

    with StopSignal() as stop:
        try:
            while waiting or running:
                if stop:
                    raise KeyboardInterrupt
                fill()
                results: list[Cell] = []
                for cell in [cell for cell, process in running.items() if process.poll() is not None]:
                    status = running.pop(cell).returncode
                    ended += 1
                    if status or not finished(cell, out):
                        failed.append(f"{cell.name} (exit {status}): {_last_line(_log(out, cell))}")
                    else:
                        results.append(cell)
                if jobs > 1:  # `done` may take long; a single run at a time waits for it, so that nothing slows it down
                    fill()
                for cell in results:
                    done(cell)
                if not running and not any(_ready(cell, out) or in_use(out / cell.name) for cell in waiting):
                    failed += [f"{cell.name}: needs {cell.needs}, which has no result" for cell in waiting]
                    waiting.clear()
                left = sum(steps[cell] for cell in (*waiting, *running))
                left -= sum(_step(out / cell.name / "metrics.jsonl") for cell in running)
                total = sum(steps.values())
                progress(total - left, total, f"{ended} of {len(grid)} runs")
                time.sleep(0.1)
        finally:
            for process in running.values():
                process.terminate()  # not SIGINT, which background processes may ignore
            for process in running.values():
                process.wait()
    if failed:
        raise GridError(f"{call}: {len(failed)} of {len(grid)} runs failed, the others are kept: " + "; ".join(failed))
    return rows(grid, out)


def process_environment(jobs: int) -> dict[str, str]:
    """The environment of the runs: several at once share the cores and take no kernel that needs the whole GPU."""
    defaults = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    if jobs > 1:
        # a kernel that waits for all of its programs could wait forever for space that another process holds
        defaults[BACKEND_VARIABLE] = "plain"
    return {**defaults, **os.environ}


def finished(cell: Cell, out: Path) -> bool:
    return all((out / name / RESULT).exists() for name in cell.names)


def rows(grid: Sequence[Cell], out: Path, task: Task[Any] | None = None) -> list[dict[str, Any]]:
    """The rows of the finished cells, in the grid's order; `task` as for `read_result`."""
    return [cell.row(read_result(out / cell.name / RESULT, "compare", task)) for cell in grid if finished(cell, out)]


def _ready(cell: Cell, out: Path) -> bool:
    return (cell.needs is None or (out / cell.needs / RESULT).exists()) and not in_use(out / cell.name)


def _log(out: Path, cell: Cell) -> Path:
    return out / "logs" / f"{cell.name}.txt"


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").strip().rpartition("\n")[2] or "no output"


def _step(metrics: Path) -> int:
    """The last step in a metrics.jsonl; a line that is still being written does not count."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - 4096))
        for line in reversed(file.read().split(b"\n")):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    return 0


# -- the rows of a comparison ------------------------------------------------------------------------------------------


SPECIAL: dict[str, tuple[str, ...]] = {
    "baseline": ("model.context=none",),
    "none": ("model.context=none",),
    # Table 2's "without ham": the two linear maps, the norm and the skip alone
    "breads": ("model.context=nmf", "model.context_options.parts=lower,upper"),
    # flash kernels take at most 256 channels a head
    "sa-flash": ("model.context=sa", "model.context_options.heads=8"),
    # the n x n matrix in memory, as the paper's comparison had it: for small maps
    "sa-materialised": ("model.context=sa", "model.context_options.materialise=true"),
}


def variants(names: Iterable[str], *, call: str = "compare") -> dict[str, tuple[str, ...]]:
    """Overrides by name; a context takes its own defaults, not the options that the recipe gives to another."""
    known = {**{name: (f"model.context={name}",) for name in list_contexts()}, **SPECIAL}
    for name in names:
        if name not in known:
            raise UnknownNameError(f"{call}: no context '{name}'{did_you_mean(name, known)}")
    return {name: known[name] for name in names}
