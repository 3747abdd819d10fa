"""`ham tune`: choose ham, rank, steps and initial dictionary for a recipe, by successive halving on short trainings.

Our own code, not Optuna: the candidates are a small grid that is known beforehand, so nothing has to be sampled.
Optuna's pruners stop trials in the middle of one long schedule; here every run of a rung ends its own schedule, with
the same steps and seeds as all others. Folders, resuming and progress come from `run_grid`.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from hamburger.errors import OptionError, check_choice, check_count, check_positive
from hamburger.files import encode_json, read_json_object, write_durably, write_json_lines
from hamburger.hams.base import hams
from hamburger.layers.burger import Init
from hamburger.layers.ham import HamLayer
from hamburger.registry import options_of
from hamburger.tasks import find_training, task_of
from hamburger.tasks.sweep import Cell, GridError, cells, finished, run_grid, variants
from hamburger.training.recipe import SupervisedTraining, apply, flatten_fields, to_json
from hamburger.training.run_folder import BEST, RESULT, TIMINGS, read_result
from hamburger.training.task import Metric

NONE = "none"  # the baseline: takes part in every rung
HAMS = ("nmf", "vq", "cd")
HAM_STEPS, INITS = (2, 6), ("random", "online", "columns")
KEPT = 3  # one of so many candidates goes on to the next rung, which is so many times longer
FINALISTS = 3  # at most, besides the baseline
FINAL_SEEDS = 3  # of the last rung; earlier rungs have one
LEAST_STEPS = 10  # of a training
MEASURED_STEPS = 20
PLANNED = 0.9  # of the budget: other candidates may be slower than the one that was measured
JOURNAL, BASE, CHOSEN, SUMMARY = "journal.json", "base.json", "recipe.json", "summary.jsonl"

Candidates = dict[str, tuple[str, ...]]  # settings by name


@dataclass(frozen=True)
class Rung:
    """Trainings of equal length; the baseline is not counted among the `candidates`."""

    steps: int
    candidates: int
    seeds: tuple[int, ...]

    @property
    def runs(self) -> int:
        return (self.candidates + 1) * len(self.seeds)


@dataclass(frozen=True)
class TuneCell(Cell):
    """A training of `ham tune`; it leaves no checkpoint."""

    def command(self, out: Path, data: Path | None) -> list[str]:
        return [*super().command(out, data), "--light"]


@dataclass(frozen=True)
class Tuning:
    """What `tune` returns: the recipe it wrote, its name among the candidates, the rows of all runs, and a verdict."""

    recipe: Path
    winner: str
    rows: list[dict[str, Any]]
    verdict: str
    metric: Metric


def tune(
    recipe: str,
    out: Path,
    *,
    data: Path | None = None,
    minutes: float = 30,
    settings: Sequence[str] = (),
    seed: int | None = None,
    names: Sequence[str] = HAMS,
    ranks: Sequence[int] = (),
    ham_steps: Sequence[int] = HAM_STEPS,
    inits: Sequence[str] = INITS,
    progress: Callable[[int, int, str], object] = lambda made, steps, what: None,
    note: Callable[[str], object] = lambda text: None,
) -> Tuning:
    """Choose the context of a recipe within a time budget and write the recipe with it to `out`/recipe.json.

    `names` are hams, each tried with every rank, number of steps and init, and other contexts of `ham compare`. Without
    `ranks`, the default rank of the network and twice that rank are tried. A short first run measures the speed; from
    it follow the lengths of all rungs, which the journal in `out` stores. Repeat an interrupted call to continue it.
    """
    base = apply(find_training(recipe), settings)
    base = base if seed is None else replace(base, seed=seed)
    task_of(base).check(base)
    check_positive("tune", "minutes", minutes)
    names = [name for name in dict.fromkeys(names) if name not in (NONE, "baseline")]
    list_candidates(base, names, ranks or (None,), ham_steps, inits)  # raises on what is wrong
    inputs: dict[str, Any] = {
        "recipe": asdict(base),
        "data": None if data is None else str(data),
        "minutes": float(minutes),
    }
    inputs |= {"candidates": names, "ranks": list(ranks), "ham_steps": list(ham_steps), "inits": list(inits)}
    journal = open_journal(out, json.loads(encode_json(inputs)))
    write_durably(out / BASE, to_json(base).encode())
    if "rungs" not in journal:
        journal |= measure_and_plan(base, out, names, ranks, inputs, data, progress)
        write_durably(out / JOURNAL, (encode_json(journal, indent=2) + "\n").encode())
    candidates: Candidates = {name: tuple(words) for name, words in journal["candidates"].items()}
    rungs = [Rung(**{**rung, "seeds": tuple(rung["seeds"])}) for rung in journal["rungs"]]
    metric = task_of(base).metric
    lengths = ", then ".join(f"{rung.runs} of {rung.steps} steps" for rung in rungs)
    note(f"{sum(rung.runs for rung in rungs)} runs: {lengths}")

    survivors, rows = [name for name in candidates if name != NONE], list[dict[str, Any]]()
    total, made = sum(rung.steps * rung.runs for rung in rungs), 0
    for number, rung in enumerate(rungs, start=1):
        chosen = {name: candidates[name] for name in (NONE, *survivors[: rung.candidates])}
        where = f"rung {number} of {len(rungs)}"

        def report(done: int, steps: int, runs: str, made: int = made, where: str = where) -> None:
            progress(made + done, total, f"{where}: {runs}")

        keep = number == len(rungs)
        results = run_rung(base, out, number, rung, chosen, data=data, keep_weights=keep, progress=report, note=note)
        rows += results
        write_json_lines(out / SUMMARY, rows)
        made += rung.steps * len(results)
        scores = {name: [row["score"] for row in results if row["candidate"] == name] for name in chosen}
        scores = {name: values for name, values in scores.items() if None not in values}
        if not scores:
            raise GridError(
                f"tune: in {where} a run of every candidate failed; the logs are in {out}/rung{number}/logs"
            )
        # ties keep the grid's order
        ranking = sorted(scores, key=lambda name: fmean(scores[name]), reverse=metric.higher)
        survivors = [name for name in ranking if name != NONE]
    winner = ranking[0]
    write_durably(out / CHOSEN, to_json(apply(base, candidates[winner])).encode())
    return Tuning(out / CHOSEN, winner, rows, judge(winner, scores, metric), metric)


def run_rung(
    base: SupervisedTraining,
    out: Path,
    number: int,
    rung: Rung,
    chosen: Candidates,
    *,
    data: Path | None,
    keep_weights: bool,
    progress: Callable[[int, int, str], object],
    note: Callable[[str], object],
) -> list[dict[str, Any]]:
    """Train every chosen candidate with every seed of the rung; return a row for each, without a score if it failed."""
    folder, shared = out / f"rung{number}", shorten_schedule(base, rung.steps)
    grid = cells(str(out / BASE), chosen, rung.seeds, shared, cell_class=TuneCell, call="tune")

    def drop_weights(cell: Cell) -> None:
        if not keep_weights:
            (folder / cell.name / BEST).unlink(missing_ok=True)

    try:
        run_grid(grid, folder, data=data, progress=progress, done=drop_weights, call="tune")
    except GridError as failure:  # such as a loss that is not finite: the candidate is out
        if not any(finished(cell, folder) for cell in grid):
            raise
        note(str(failure))
    for cell in grid:  # a call that was interrupted may have left some
        drop_weights(cell)
    metric = task_of(base).metric
    return [describe_run(cell, folder, number, rung.steps, metric) for cell in grid]


# -- candidates and rungs ----------------------------------------------------------------------------------------------


def list_candidates(
    base: SupervisedTraining,
    names: Sequence[str],
    ranks: Sequence[int | None],
    ham_steps: Sequence[int],
    inits: Sequence[str],
) -> Candidates:
    """Return the settings of all candidates by name, the baseline first; raise on unknown names and values.

    A rank of None is the default of the network.
    """
    if not names:
        raise OptionError(f"tune: give at least one candidate besides {NONE}, such as nmf")
    for count in (rank for rank in ranks if rank is not None):
        check_count("tune", "each of the ranks", count, least=1)
    for count in ham_steps:
        check_count("tune", "each of the ham steps", count, least=1)
    for init in inits:
        check_choice("tune", "init", init, get_args(Init))
    for option, values in (("ham steps", ham_steps), ("init", inits)):
        if not values:
            raise OptionError(f"tune: give at least one value for {option}")
    reset = "model.context_options=none"
    # a ham keeps the other options that the recipe gives to a ham
    keeps = base.model.context in hams
    candidates: Candidates = {NONE: (reset, f"model.context={NONE}")}
    for name, settings in variants(names, call="tune").items():
        if name not in hams:
            candidates[name] = (reset, *settings)
            continue
        for rank, steps, init in product(ranks if "rank" in options_of(hams[name]) else (None,), ham_steps, inits):
            options = {"rank": rank, "steps": steps, "init": init}
            words = [f"model.context_options.{key}={value}" for key, value in options.items() if value is not None]
            label = "-".join([name, *([] if rank is None else [f"rank{rank}"]), f"k{steps}", init])
            candidates[label] = (*(() if keeps else (reset,)), *settings, *words)
    return candidates


def plan_rungs(
    candidates: int, *, steps: int, budget: float, run_seconds: float, step_seconds: float, seed: int
) -> list[Rung]:
    """Return the longest rungs that fit into the budget in seconds, none longer than `steps`.

    Each rung keeps a third of the candidates and is three times as long; the last has at most three, and three seeds. A
    run takes `run_seconds` besides its steps.
    """
    counts = [candidates]
    while counts[-1] > FINALISTS:
        counts.append(math.ceil(counts[-1] / KEPT))
    final_seeds = tuple(range(seed, seed + FINAL_SEEDS))
    seeds = [(seed,)] * (len(counts) - 1) + [final_seeds]
    least = min(LEAST_STEPS, steps)

    def rungs(last: int) -> list[Rung]:
        lengths = [max(least, last // KEPT ** (len(counts) - 1 - i)) for i in range(len(counts))]
        return [Rung(*parts) for parts in zip(lengths, counts, seeds, strict=True)]

    def seconds(last: int) -> float:
        return sum(rung.runs * (run_seconds + rung.steps * step_seconds) for rung in rungs(last))

    fitting = bisect_right(range(least, steps + 1), budget, key=seconds)
    if not fitting:
        raise OptionError(
            f"tune: {candidates} candidates need {seconds(least) / 60:.1f} minutes for {least} steps or more each: a "
            f"step takes {step_seconds:.2g} s, start and evaluation of a run {run_seconds:.0f} s (got "
            f"{budget / 60:.1f} minutes); give more --minutes, or fewer candidates, ranks, ham steps or inits"
        )
    return rungs(least + fitting - 1)


def shorten_schedule(base: SupervisedTraining, steps: int) -> tuple[str, ...]:
    """Return the settings of a training of so many steps: its own schedule, and one evaluation at its end."""
    warmup = round(base.optim.warmup * steps / base.steps)
    every = {"steps": steps, "eval_every": steps, "checkpoint_every": steps, "log_every": max(1, steps // 2)}
    fields = {**every, "optim.warmup": warmup, "keep": "last", "tensorboard": "false"}
    return tuple(f"{name}={value}" for name, value in fields.items())


def measure_and_plan(
    base: SupervisedTraining,
    out: Path,
    names: Sequence[str],
    ranks: Sequence[int],
    inputs: Mapping[str, Any],
    data: Path | None,
    progress: Callable[[int, int, str], object],
) -> dict[str, Any]:
    """Train the first ham, or else the first candidate, for a few steps; return the rest of the journal."""
    folder = out / "measured"
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was interrupted in the middle of it
    steps, ham_steps, inits = min(MEASURED_STEPS, base.steps), inputs["ham_steps"], inputs["inits"]
    measured_name = next((name for name in names if name in hams), names[0])
    first = list_candidates(base, [measured_name], ranks[-1:] or (None,), [max(ham_steps)], inits[:1])
    settings = list(first.values())[-1]
    cell = TuneCell("measured", str(out / BASE), base.seed, (*shorten_schedule(base, steps), *settings))
    begin = time.monotonic()
    run_grid(
        [cell],
        folder,
        data=data,
        progress=lambda done, total, runs: progress(done, total, "measuring the speed"),
        call="tune",
    )
    seconds = time.monotonic() - begin
    # the last line of the timings does not include the first steps, which are slow
    last = (folder / cell.name / TIMINGS).read_text().splitlines()[-1]
    step_seconds = base.batch / json.loads(last)["images_per_s"]
    run_seconds = max(0.0, seconds - steps * step_seconds)
    if not ranks and any(name in hams for name in names):
        net, _ = task_of(base).load(folder / cell.name / BEST)
        rank = max((layer.ham.rank for layer in net.modules() if isinstance(layer, HamLayer)), default=8)
        ranks = (rank, 2 * rank)
    candidates = list_candidates(base, names, ranks, ham_steps, inits)
    rungs = plan_rungs(
        len(candidates) - 1,
        steps=base.steps,
        budget=max(0.0, PLANNED * 60 * inputs["minutes"] - seconds),
        run_seconds=run_seconds,
        step_seconds=step_seconds,
        seed=base.seed,
    )
    measured = {"seconds": seconds, "run_seconds": run_seconds, "step_seconds": step_seconds}
    return {"measured": measured, "candidates": candidates, "rungs": [asdict(rung) for rung in rungs]}


# -- journal, rows and verdict -----------------------------------------------------------------------------------------


def open_journal(out: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the journal in the folder, or begin one; raise where it belongs to a call with other inputs."""
    path = out / JOURNAL
    journal = read_json_object(path, "tune") if path.exists() else {}
    if "rungs" in journal:
        here, there = (flatten_fields(each) for each in (inputs, journal.get("inputs", {})))
        changed = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
        if changed:
            words = "; ".join(f"{name}: {here.get(name)} here, {there.get(name)} there" for name in changed[:4])
            raise OptionError(
                f"tune: {out} holds a tuning with other settings ({words}); name another folder with --out"
            )
        return journal
    if not journal and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OptionError(f"tune: {out} exists and holds no tuning; name a new folder with --out")
    journal = {"inputs": dict(inputs)}
    write_durably(path, (encode_json(journal, indent=2) + "\n").encode())
    return journal


def describe_run(cell: Cell, folder: Path, rung: int, steps: int, metric: Metric) -> dict[str, Any]:
    """Return the row of a run; its score is None if it failed."""
    result = read_result(folder / cell.name / RESULT, "tune") if finished(cell, folder) else {}
    row = {"candidate": cell.variant, "rung": rung, "steps": steps, "seed": cell.seed, "metric": metric.name}
    return {**row, "score": result.get(metric.name), "seconds": result.get("seconds")}


def judge(winner: str, scores: Mapping[str, Sequence[float]], metric: Metric) -> str:
    """Say whether the winner of the last rung is better than the baseline by more than seeds differ."""
    if winner == NONE:
        return f"no candidate is better than {NONE}: the recipe has no context"
    if NONE not in scores:
        return f"{winner} has the best score; the training without a context failed"
    difference = fmean(scores[winner]) - fmean(scores[NONE])
    spread = max(max(values) - min(values) for values in (scores[winner], scores[NONE]))
    words = (
        f"{metric.label} {metric.format_difference(difference)} {metric.difference_unit}; "
        f"seeds differ by up to {metric.format(spread)}"
    )
    if abs(difference) > spread:
        return f"{winner} is better than {NONE}: {words}"
    return f"{winner} is not better than {NONE} beyond the spread of {len(scores[NONE])} seeds: {words}"
