"""`ham tune`: the plan, successive halving with a trainer that writes given scores, interruption, and the recipe."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import hamburger as hb
from hamburger.tasks import find_training, tune
from hamburger.tasks.sweep import GridError, finished
from hamburger.tasks.tune import Rung, judge, list_candidates, plan_rungs, shorten_schedule
from hamburger.training.recipe import apply
from hamburger.training.task import Metric

FEW = {"names": ("nmf", "efficient"), "ranks": (2, 4), "ham_steps": (3,), "inits": ("online", "columns")}
A, B, C, D = (f"nmf-rank{rank}-k3-{init}" for rank in (2, 4) for init in ("online", "columns"))


# -- plan --------------------------------------------------------------------------------------------------------------


def plan(candidates, budget, *, steps=1000, run_seconds=2.0, step_seconds=0.1, seed=0):
    return plan_rungs(
        candidates, steps=steps, budget=budget, run_seconds=run_seconds, step_seconds=step_seconds, seed=seed
    )


def test_rungs_are_the_longest_that_fit():
    """9 candidates and the baseline, then 3 with three seeds: 10 (2 + l / 30) + 12 (2 + l / 10) seconds, rounded down.

    That is 44 + 10 floor(l / 3) / 10 + 1.2 l: 198.2 for l = 101, 200.4 for l = 102.
    """
    assert plan(9, 200, seed=5) == [Rung(33, 9, (5,)), Rung(101, 3, (5, 6, 7))]
    assert plan(9, 200.5, seed=5)[-1].steps == 102


def test_every_rung_keeps_a_third_and_none_is_longer_than_the_recipe():
    rungs = plan(36, 1e6, steps=540)
    assert [rung.candidates for rung in rungs] == [36, 12, 4, 2]
    assert [rung.steps for rung in rungs] == [20, 60, 180, 540]
    assert [len(rung.seeds) for rung in rungs] == [1, 1, 1, 3]
    assert plan(2, 1e6, steps=6) == [Rung(6, 2, (0, 1, 2))]


def test_a_budget_that_is_too_small_says_what_is_needed():
    # 10 runs of 10 steps and 12 of 10: 22 (2 + 1) seconds
    assert plan(9, 66.0) == [Rung(10, 9, (0,)), Rung(10, 3, (0, 1, 2))]
    with pytest.raises(
        hb.OptionError, match=r"9 candidates need 1.1 minutes for 10 steps .* \(got 1.1 minutes\); give more"
    ):
        plan(9, 65.9)


def test_the_schedule_has_the_length_of_the_rung():
    base = find_training("cifar10-classes")
    short = apply(base, shorten_schedule(base, 117))
    assert (short.steps, short.eval_every, short.optim.warmup, short.keep) == (117, 117, 2, "last")
    assert short.optim.lr == base.optim.lr


def test_candidates_are_the_grid_of_hams_the_others_and_the_baseline():
    base = find_training("figures-classes")
    candidates = list_candidates(base, FEW["names"], FEW["ranks"], FEW["ham_steps"], FEW["inits"])
    assert list(candidates) == ["none", A, B, C, D, "efficient"]
    recipes = {name: apply(base, settings).model for name, settings in candidates.items()}
    assert recipes["none"].context is None and recipes["efficient"].context == "efficient"
    assert recipes[D].context_options == {"rank": 4, "steps": 3, "init": "columns"}
    other = apply(base, ["model.context_options.grad=bptt"])  # of the recipe's ham, kept for hams
    assert apply(other, candidates["efficient"]).model.context_options == {}
    assert apply(other, candidates[A]).model.context_options["grad"] == "bptt"
    attention = apply(base, ["model.context=sa", "model.context_options.heads=2"])
    again = list_candidates(attention, ["nmf"], [None], [6], ["random"])
    assert list(again) == ["none", "nmf-k6-random"]
    assert apply(attention, again["nmf-k6-random"]).model.context_options == {"steps": 6, "init": "random"}


# -- successive halving ------------------------------------------------------------------------------------------------


class GivenScores:
    """In place of `run_grid`: writes the results that training would, and counts the runs it makes."""

    def __init__(self, scores, metric="accuracy", interrupt_at=None):
        self.scores, self.metric, self.interrupt_at, self.runs = scores, metric, interrupt_at, []
        self.first = None

    def __call__(self, grid, folder, *, data, progress, call, done=lambda cell: None):
        failed = []
        for cell in (cell for cell in grid if not finished(cell, folder)):
            if self.interrupt_at == len(self.runs):
                raise KeyboardInterrupt
            recipe, run = cell.resolved(), folder / cell.name
            self.runs.append((cell.variant, recipe.steps, recipe.seed))
            self.first = self.first or recipe.model
            scores = self.scores.get(cell.variant, {}).get(folder.name, [0.1])
            score = scores[cell.seed - 7] if len(scores) > 1 else scores[0]
            run.mkdir(parents=True, exist_ok=True)
            if score is None:
                failed.append(cell.name)
                continue
            lines = [{"step": step, "images_per_s": speed} for step, speed in ((10, 1.0), (20, 320.0))]
            (run / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (run / "best.safetensors").write_bytes(b"weights")
            values = {"steps": recipe.steps, "seed": cell.seed, self.metric: score, "seconds": 1.5}
            (run / "result.json").write_text(json.dumps(values))
            progress(1, 2, "some")
            done(cell)
        if failed:
            raise GridError(f"{call}: failed: {failed}")


SCORES = {
    "none": {"rung1": [0.5], "rung2": [0.6, 0.7, 0.8]},
    A: {"rung1": [0.6]},
    B: {"rung1": [0.7], "rung2": [0.9, 0.8, 0.7]},
    C: {"rung1": [None]},
    D: {"rung1": [0.65], "rung2": [0.85, 0.86, 0.84]},
    "efficient": {"rung1": [0.4]},
}


def start(monkeypatch, out, runs, recipe="figures-classes", **options):
    monkeypatch.setattr(tune, "run_grid", runs)
    return tune.tune(recipe, out, seed=7, minutes=3, **{**FEW, **options})


def test_halving_step_by_step(monkeypatch, tmp_path):
    runs, notes = GivenScores(SCORES), []
    result = start(monkeypatch, tmp_path / "out", runs, note=notes.append)
    # the network makes 10 steps of 32 images a second, so the second rung has all 120 steps of the recipe
    first = [(name, 40, 7) for name in ("none", A, B, C, D, "efficient")]
    second = [(name, 120, seed) for seed in (7, 8, 9) for name in ("none", B, D)]
    assert runs.runs == [("measured", 20, 7), *first, *second]
    assert result.winner == D
    assert notes == ["15 runs: 6 of 40 steps, then 9 of 120 steps", f"tune: failed: ['{C}-seed7']"]
    assert result.verdict == (
        f"{D} is not better than none beyond the spread of 3 seeds: accuracy +15.00 points; seeds differ by up to 20.00"
    )
    chosen = find_training(str(result.recipe))
    assert chosen == apply(
        find_training("figures-classes"),
        ["seed=7", *json.loads((tmp_path / "out/journal.json").read_text())["candidates"][D]],
    )
    assert (chosen.steps, chosen.model.context_options["init"]) == (120, "columns")
    rows = [json.loads(line) for line in (tmp_path / "out/summary.jsonl").read_text().splitlines()]
    assert rows == result.rows and len(rows) == 15
    assert rows[3] == {
        **{"candidate": C, "rung": 1, "steps": 40, "seed": 7, "metric": "accuracy", "score": None, "seconds": None}
    }
    weights = {path.parent.parent.name for path in (tmp_path / "out").rglob("best.safetensors")}
    assert weights == {"measured", "rung2"}


def test_the_first_run_has_the_most_expensive_ham(monkeypatch, tmp_path):
    runs = GivenScores(SCORES)
    start(monkeypatch, tmp_path / "out", runs, names=("efficient", "nmf"), ham_steps=(6, 3))
    assert (runs.first.context, runs.first.context_options) == ("nmf", {"rank": 4, "steps": 6, "init": "online"})


def test_the_baseline_can_win(monkeypatch, tmp_path):
    scores = {"none": {"rung1": [0.1], "rung2": [0.9, 0.9, 0.9]}}
    result = start(monkeypatch, tmp_path / "out", GivenScores(scores))
    assert result.winner == "none" and "no candidate is better than none" in result.verdict
    assert find_training(str(result.recipe)).model.context is None


def test_where_less_is_better_the_smallest_score_wins(monkeypatch, tmp_path):
    errors = {
        name: {rung: [None if score is None else 10 - 10 * score for score in values] for rung, values in rungs.items()}
        for name, rungs in SCORES.items()
    }
    result = start(monkeypatch, tmp_path / "out", GivenScores(errors, "epe"), recipe="planes-tiny")
    assert result.winner == D and "EPE -1.50 px; seeds differ by up to 2.00" in result.verdict


@pytest.mark.parametrize("at", [0, 4, 12])
def test_an_interrupted_call_continues_to_the_same_recipe(monkeypatch, tmp_path, at):
    undisturbed = start(monkeypatch, tmp_path / "whole", GivenScores(SCORES))
    runs = GivenScores(SCORES, interrupt_at=at)
    with pytest.raises(KeyboardInterrupt):
        start(monkeypatch, tmp_path / "out", runs)
    again = GivenScores(SCORES)
    result = start(monkeypatch, tmp_path / "out", again)
    assert result.recipe.read_text() == undisturbed.recipe.read_text() and result.rows == undisturbed.rows
    failed = 1 if at >= 5 else 0  # a failed run is tried again
    assert len(runs.runs) + len(again.runs) == 16 + failed


def test_a_folder_belongs_to_one_call(monkeypatch, tmp_path):
    start(monkeypatch, tmp_path / "out", GivenScores(SCORES))
    for changed, words in (
        ({"ranks": (2, 8)}, "ranks"),
        ({"settings": ("steps=90",)}, "recipe.steps: 90 here, 120 there"),
    ):
        with pytest.raises(hb.OptionError, match=f"holds a tuning with other settings .*{words}.*--out"):
            start(monkeypatch, tmp_path / "out", GivenScores(SCORES), **changed)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/photo.jpg").touch()
    with pytest.raises(hb.OptionError, match="mine exists and holds no tuning; name a new folder with --out"):
        start(monkeypatch, tmp_path / "mine", GivenScores(SCORES))


def test_a_budget_that_was_too_small_can_be_raised(monkeypatch, tmp_path):
    monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=iter([0.0, 50.0, 0.0, 1.0]).__next__))
    with pytest.raises(hb.OptionError, match=r"start and evaluation of a run 48 s"):
        start(monkeypatch, tmp_path / "out", GivenScores(SCORES))
    assert start(monkeypatch, tmp_path / "out", GivenScores(SCORES), settings=("eval_every=20",)).winner == D


def test_a_rung_in_which_every_candidate_fails_raises(monkeypatch, tmp_path):
    scores = {name: {"rung1": [0.5], "rung2": [0.5, None, 0.5]} for name in SCORES}
    with pytest.raises(GridError, match="in rung 2 of 2 a run of every candidate failed; the logs are in"):
        start(monkeypatch, tmp_path / "out", GivenScores(scores))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "figure-classes"}, "did you mean 'figures-classes'"),
        ({"names": ("nfm",)}, "tune: no context 'nfm'; did you mean 'nmf'"),
        ({"names": ("none",)}, "tune: give at least one candidate besides none"),
        ({"minutes": 0}, "tune: minutes must be a finite number above 0"),
        ({"ranks": (0,)}, "tune: each of the ranks must be a whole number of at least 1, got 0"),
        ({"ham_steps": (0,)}, "tune: each of the ham steps must be"),
        ({"ham_steps": ()}, "tune: give at least one value for ham steps"),
        ({"inits": ("colums",)}, "tune: no init 'colums'; did you mean 'columns'"),
        ({"settings": ("stepz=3",)}, "no field 'stepz'"),
        ({"settings": ("batch=1",)}, "two images at once"),
    ],
)
def test_errors_before_any_work(options, message, tmp_path):
    with pytest.raises(hb.HamburgerError, match=message):
        tune.tune(**{"recipe": "figures-classes", "out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


def test_the_verdict_counts_the_spread_of_both():
    metric = Metric("miou", "mIoU")
    assert "nmf is better than none: mIoU +3.00 points; seeds differ by up to 2.00" in judge(
        "nmf", {"nmf": [0.73, 0.74], "none": [0.695, 0.715]}, metric
    )
    assert "is not better than none" in judge("nmf", {"nmf": [0.73, 0.74], "none": [0.685, 0.725]}, metric)
    assert "the training without a context failed" in judge("nmf", {"nmf": [0.7]}, metric)


# -- real trainings ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_killed_tuning_continues_to_the_same_recipe(tmp_path):
    few = ["--set", "data.options.length=32", "--set", "batch=8", "--set", "steps=30"]
    grid = ["--candidates", "nmf", "--ham-steps", "2", "--inits", "columns", "--minutes", "30"]

    def command(out):
        return [sys.executable, "-m", "hamburger", "tune", "figures-classes", "--out", str(out), *few, *grid]

    process = subprocess.Popen(command(tmp_path / "out"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "out").glob("rung1/*/result.json")):
        time.sleep(0.1)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "out/journal.json", tmp_path / "other")  # the same plan, without any run
    texts = []
    for out in (tmp_path / "out", tmp_path / "other"):
        subprocess.run(command(out), check=True)
        rows = [json.loads(line) for line in (out / "summary.jsonl").read_text().splitlines()]
        texts.append(((out / "recipe.json").read_text(), [{**row, "seconds": None} for row in rows]))
    assert texts[0] == texts[1]
    journal = json.loads((tmp_path / "out/journal.json").read_text())
    # 32 channels: the default rank is 8
    assert list(journal["candidates"]) == ["none", "nmf-rank8-k2-columns", "nmf-rank16-k2-columns"]
    hb.train(tmp_path / "out/recipe.json", tmp_path / "run", overrides={"steps": 2}, accelerator="cpu")
