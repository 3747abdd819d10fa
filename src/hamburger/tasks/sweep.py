"""Many runs, each a process with its own run folder: finished ones are skipped, broken ones resumed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from hamburger.errors import HamburgerError, OptionError, check_count
from hamburger.generation.recipe import GanRecipe, check_gan_recipe
from hamburger.solvers.backend import VARIABLE
from hamburger.tasks.recipes import find_gan_recipe, find_training, kind_of
from hamburger.training.interrupt import StopRequest
from hamburger.training.recipe import Training
from hamburger.training.recipe_io import apply, differences, digest, read_recipe
from hamburger.training.run_folder import RECIPE, RESULT, RunFolder, in_use

WORKER = (sys.executable, "-m", "hamburger.cli.worker")
HAM = (sys.executable, "-m", "hamburger")


class Running(Protocol):
    """A command that has been started."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def terminate(self) -> None: ...

    def wait(self) -> int: ...


class Fresh:
    """A new interpreter for every command."""

    def __init__(self, jobs: int) -> None:
        self.environment = {**os.environ}
        # side by side on few cores, every process with all threads would fight the others
        self.environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
        if jobs > 1:
            # kernels that wait for all of their programs must not wait for room that those of another process hold
            self.environment.setdefault(VARIABLE, "plain")

    def start(self, words: Sequence[str], log: Path) -> Running:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self.environment, start_new_session=True
            )

    def close(self) -> None:
        """Nothing waits for work here."""


class Warm(Fresh):
    """Interpreters that stay: as many as were ever needed at once. They end when this process closes them, or ends."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self.idle: list[Worker] = []

    def start(self, words: Sequence[str], log: Path) -> Running:
        if tuple(words[: len(HAM)]) != HAM:
            return super().start(words, log)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.idle = [worker for worker in self.idle if worker.alive()]
        worker = self.idle.pop() if self.idle else Worker(self.environment, log)
        worker.take(words[len(HAM) :], log)
        return Job(worker, self)

    def close(self) -> None:
        for worker in self.idle:
            worker.close()
        self.idle.clear()


class Worker:
    """One interpreter of `cli/worker.py`: a line in is a command, a line out is its exit status."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as file:  # what it says before its first command
            self.process = subprocess.Popen(
                WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout
        os.set_blocking(self.answers.fileno(), False)

    def take(self, words: Sequence[str], log: Path) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died, which the next look at it tells
            self.orders.write((json.dumps({"words": list(words), "log": str(log.absolute())}) + "\n").encode())
            self.orders.flush()

    def alive(self) -> bool:
        return self.process.poll() is None

    def answer(self) -> int | None:
        """The status of the command it was given last; its own where it has died over it; None while it works."""
        ended = self.process.poll()  # looked at first: what it has said before its end is read below
        line = self.answers.readline()
        if line.strip():
            return int(line)
        return None if ended is None else ended or 1

    def close(self) -> None:
        for end in (self.orders, self.answers):
            with contextlib.suppress(BrokenPipeError):
                end.close()
        self.process.wait()


class Job:
    """A command in a worker, which is free again when it is done."""

    def __init__(self, worker: Worker, owner: Warm) -> None:
        self.worker, self.owner = worker, owner
        self.status: int | None = None

    def poll(self) -> int | None:
        if self.status is None:
            self.status = self.worker.answer()
            if self.status == 0:
                self.owner.idle.append(self.worker)
            elif self.status is not None:
                self.worker.close()
        return self.status

    def terminate(self) -> None:
        if self.status is None:
            self.worker.process.terminate()

    def wait(self) -> int:
        if self.status is None:
            self.worker.process.wait()
            self.status = self.worker.process.returncode
            self.worker.close()
        return self.status


# ----------------------------------------------------------------------------------------------------------------------
# Many runs side by side, each a process with its own run folder: finished ones are skipped, broken ones resume.


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


# ----------------------------------------------------------------------------------------------------------------------
# Cells of a grid that are GANs.


@dataclass(frozen=True)
class GanCell(Cell):
    verb: ClassVar[tuple[str, ...]] = ("gan", "train")

    def resolved(self) -> GanRecipe:
        recipe = replace(apply(find_gan_recipe(self.recipe), self.overrides), seed=self.seed)
        check_gan_recipe(recipe, processes=1)
        return recipe

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**super().row(result), "recipe_hash": digest(self.resolved())}


def check_data(grid: Sequence[Cell], out: Path, digest: str) -> None:
    """Before any work: what is finished in the folder was trained on the images of that digest.

    What is not finished says so itself when it resumes.
    """
    for cell in grid:
        found = RunFolder(out / cell.name).result()
        if found is not None and found.get("data_sha256") != digest:
            seen = str(found.get("data_sha256", "unknown"))[:12]
            raise OptionError(
                f"gan grid: the run in {out / cell.name} was trained on other images (sha256 {seen}) than --data holds "
                f"({digest[:12]}); give the same --data, or name another folder with --out. Where they are the same, "
                f"remove its {RESULT}: it is written again from the checkpoint"
            )
