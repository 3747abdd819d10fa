"""Grids: cells, order, resuming, evaluations that need weights, and the file of rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hamburger.contexts import create_context
from hamburger.errors import HamburgerError, OptionError, UnknownNameError
from hamburger.segmentation.model import create_model
from hamburger.tasks import find_training
from hamburger.tasks.sweep import GridError, check_grid, rows, run_grid
from hamburger.training.recipe import digest, to_json
from hamburger.training.run_folder import in_use
from hamburger_lab.ablations.cells import ablation_cells
from hamburger_lab.ablations.grids import DEFAULTS, ablations, select_cells
from hamburger_lab.ablations.plan import AblationPlan, check_rows, merge_rows, read_rows, still_to_run

WORK = """
import json, pathlib, sys
run, seed, fails = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "fails"
run.mkdir(parents=True, exist_ok=True)
with (run / "starts.txt").open("a") as file:
    file.write("x")
if fails:
    sys.exit("the loss is not finite")
(run / "best.safetensors").touch()
(run / "result.json").write_text(json.dumps(
    {"miou": seed / 10, "seed": seed, "recipe": "other", "weights": "/a/folder", "loss": 1.5, "hardware": "here"}))
"""


WRITE = """p.mkdir(parents=True); (p / "best.safetensors").touch(); (p / "result.json").write_text('{"miou": 0.5}'); """


def stand_in(cell, out, data, *, fails=()):
    if cell.needs is not None:  # an evaluation begins only when its weights are there
        assert (out / cell.needs / "result.json").exists()
    return [sys.executable, "-c", WORK, str(out / cell.name), str(cell.seed), "fails" if cell.name in fails else ""]


def starts(out, cell):
    path = out / cell.name / "starts.txt"
    return len(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize("recipe", ["patchwork", "voc-animals"])
@pytest.mark.parametrize("name", ablations.names())
def test_every_grid_builds_valid_recipes(name, recipe, tmp_path):
    grid = ablation_cells(name, recipe, seeds=[0])
    check_grid(grid, tmp_path)
    trainings = {cell.variant: cell for cell in grid if cell.weights is None}
    assert len({digest(cell.resolved()) for cell in trainings.values()}) == len(trainings)
    assert len({cell.name for cell in grid}) == len(grid)
    for cell in grid:
        assert cell.weights is None or cell.overrides == trainings[cell.weights].overrides
        assert cell.weights is None or cell.needs == trainings[cell.weights].name
        assert cell.resolved().keep == "last"
        assert set(cell.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


@pytest.mark.parametrize("name", sorted(set(ablations.names()) - {"contexts", "steps"}))
def test_networks_of_a_grid_can_be_built(name):
    for cell in ablation_cells(name, "patchwork", seeds=[0]):
        if cell.weights is None:
            model = cell.resolved().model
            options = {key: value for key, value in vars(model).items() if key not in ("name", "pretrained")}
            create_model(model.name, num_classes=3, **options)


def test_wrong_names_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'gradient'"):
        ablation_cells("gradeint", "patchwork", seeds=[0])
    with pytest.raises(UnknownNameError, match="did you mean 'only-ham'"):
        ablation_cells("parts", "patchwork", seeds=[0], only=["onlyham"])
    with pytest.raises(OptionError, match="give each seed once"):
        ablation_cells("parts", "patchwork", seeds=[1, 1])
    with pytest.raises(OptionError, match="multiple of 64"):
        recipe = find_training("patchwork")
        select_cells("latent", replace(recipe, model=replace(recipe.model, head_options={"width": 40})))


def test_evaluation_selects_and_waits_for_its_training(tmp_path):
    grid = ablation_cells("steps", "patchwork", seeds=[0], only=["vq-k1-at3"])
    assert [cell.name for cell in grid] == ["vq-k1-seed0", "vq-k1-at3-seed0"]
    assert grid[0].command(tmp_path, None)[-1] == "--light"
    words = grid[1].command(tmp_path, tmp_path / "images")
    assert words[1:] == [
        *("-m", "hamburger", "eval-solver", str(tmp_path / "vq-k1-seed0"), "--steps", "3", "--split", "val"),
        *("--json", str(tmp_path / "vq-k1-at3-seed0" / "result.json"), "--data", str(tmp_path / "images")),
    ]
    result = run_grid(list(reversed(grid)), tmp_path, jobs=2, command=stand_in)
    assert [row["cell"] for row in result] == ["vq-k1-at3", "vq-k1"]
    assert result[0]["weights"] == "vq-k1" and result[0]["recipe"] == "patchwork"
    assert result[0]["recipe_hash"] == result[1]["recipe_hash"]


def test_finished_cells_are_skipped_and_missing_weights_named(tmp_path):
    grid = ablation_cells("dictionary", "patchwork", seeds=[0], only=["nmf-drawn1", "vq-drawn1"])

    def broken(cell, out, data):
        return stand_in(cell, out, data, fails=("vq-seed0",))

    with pytest.raises(GridError, match=r"ablate: 2 of 4 runs failed.*vq-drawn1-seed0: needs vq-seed0"):
        run_grid(grid, tmp_path, command=broken, call="ablate")
    assert [row["cell"] for row in rows(grid, tmp_path)] == ["nmf", "nmf-drawn1"]
    run_grid(grid, tmp_path, command=stand_in)
    assert {cell.variant: starts(tmp_path, cell) for cell in grid} == {
        **{"nmf": 1, "nmf-drawn1": 1, "vq": 2, "vq-drawn1": 1},
    }


def test_folder_with_other_settings_raises(tmp_path):
    old, new = (ablation_cells("parts", "patchwork", seeds=[0], settings=[f"steps={n}"]) for n in (7, 9))
    (tmp_path / old[0].name).mkdir()
    (tmp_path / old[0].name / "recipe.json").write_text(to_json(old[0].resolved()))
    with pytest.raises(OptionError, match=r"ablate: the run in .* was made with another recipe \(steps"):
        run_grid(new, tmp_path, command=stand_in, call="ablate")


def test_rows_in_the_file_count_as_finished_and_lost_weights_are_retrained(tmp_path):
    path, runs, lost = tmp_path / "rows.jsonl", tmp_path / "runs", tmp_path / "lost"
    names = ["nmf-drawn1", "nmf-drawn2", "vq-drawn1"]
    grid = ablation_cells("dictionary", "patchwork", seeds=[0], only=names)
    assert still_to_run(path, grid, runs) == grid
    merge_rows(path, run_grid([cell for cell in grid if cell.variant != "nmf-drawn2"], runs, command=stand_in))
    assert [cell.variant for cell in still_to_run(path, grid, runs)] == ["nmf-drawn2"]
    assert [cell.variant for cell in still_to_run(path, grid, lost)] == ["nmf", "nmf-drawn1", "nmf-drawn2"]
    other = ablation_cells("dictionary", "patchwork", seeds=[0], only=names, settings=["steps=9"])
    assert still_to_run(path, other, runs) == other


def test_rows_are_merged_over_calls_and_never_mixed(tmp_path):
    path = tmp_path / "rows.jsonl"
    first = ablation_cells("parts", "patchwork", seeds=[0], only=["baseline", "whole"])
    second = ablation_cells("parts", "patchwork", seeds=[1, 0], only=["whole"])
    for grid in (first, second):
        check_rows(path, grid)
        merge_rows(path, run_grid(grid, tmp_path / "runs", command=stand_in))
    assert [(row["seed"], row["cell"]) for row in read_rows(path)] == [(0, "baseline"), (0, "whole"), (1, "whole")]
    assert "/a/folder" not in path.read_text()
    needed = {"recipe_hash", "cell", "seed", "settings", "miou", "loss", "steps", "hardware"}
    assert all(needed <= set(json.loads(line)) for line in path.read_text().splitlines())
    with pytest.raises(OptionError, match="name another file with --json"):
        check_rows(path, ablation_cells("parts", "patchwork", seeds=[2], settings=["steps=9"]))


def test_runs_that_outlive_a_killed_call_are_awaited(tmp_path):
    """A killed grid leaves processes behind; a second process in the same folder would fail."""
    grid = ablation_cells("parts", "patchwork", seeds=[0], only=["baseline", "whole"])
    folder = tmp_path / grid[0].name
    folder.mkdir()
    hold = (
        "import fcntl, pathlib, sys, time; folder = pathlib.Path(sys.argv[1]); lock = (folder / '.lock').open('wb');"
        "fcntl.lockf(lock, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.readline();"
        "(folder / 'left').write_text('x')"
    )
    orphan = subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert orphan.stdout.readline() == "held\n"
    started = []

    def command(cell, out, data):
        started.append((cell.name, (folder / "left").exists()))
        return stand_in(cell, out, data)

    def done(cell):
        if cell.name != grid[0].name:
            assert in_use(folder)
            orphan.communicate("go\n")

    assert len(run_grid(grid, tmp_path, command=command, done=done, jobs=2)) == 2
    assert started == [(grid[1].name, False), (grid[0].name, True)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"recipe": "patchwork", "context": "nmf"}', "rows that are not from an ablation .no ablation, cell"),
        ('{"ablation": "parts", "ce', "ablate: line 1 of .*rows.jsonl is not a JSON object"),
    ],
)
def test_file_with_other_rows_raises_before_any_run(tmp_path, content, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(content + "\n")
    with pytest.raises(HamburgerError, match=message):
        check_rows(path, ablation_cells("parts", "patchwork", seeds=[0]))
    assert path.read_text() == content + "\n"


def test_grids_share_common_trainings():
    """Equal settings are trained once; omitted options are the defaults of a Hamburger."""
    cells = [cell for name in ablations.names() for cell in ablation_cells(name, "voc-animals", seeds=[0])]
    trainings = [cell for cell in cells if cell.weights is None]
    recipes = {}
    for cell in trainings:
        assert recipes.setdefault(cell.name, cell.resolved()) == cell.resolved()
    words = (Path(__file__).parents[3] / "results" / "README.md").read_text().split()
    assert f"of {len(trainings)} cells that are trained, {len(recipes)} differ." in " ".join(words)
    same = {"nmf": {"whole", "nmf-one-step", "nmf-random", "nmf-k6", "d512-r64"}, "breads": {"without-ham"}}
    same |= {name: {f"{name}-one-step", f"{name}-random", f"{name}-k6", f"{name}-t0.01"} for name in ("vq", "cd")}
    for name, variants in same.items():
        assert {cell.variant for cell in trainings if cell.name == f"{name}-seed0"} >= variants
    for name, options in (("vq", DEFAULTS), ("nmf", {"inner": 64, "rank": 8, "grad": "one-step", "steps": 6})):
        plain, spelt = (repr(create_context(name, 64, **chosen)) for chosen in ({}, options))
        assert plain == spelt
    spoken = ablation_cells("steps", "patchwork", seeds=[0], settings=["model.context_options.steps=3"])
    result = {cell.variant: cell.resolved().model.context_options["steps"] for cell in spoken if cell.weights is None}
    assert result["nmf-k6"] == 6 and result["nmf-k3"] == 3


def plan_of(tmp_path, *names, seeds=(0, 1), **options):
    return AblationPlan.create(
        names, "patchwork", tmp_path / "runs", seeds=seeds, json=str(tmp_path / "{grid}.jsonl"), **options
    )


def test_several_grids_run_in_one_queue_with_a_file_each(tmp_path):
    plan = plan_of(tmp_path, "parts", "dictionary")
    plan.begin()
    left = plan.remaining
    assert [cell.seed for cell in left] == sorted(cell.seed for cell in left)
    assert len({cell.name for cell in left}) == len(left) == 2 * (6 + 12 - 1)  # `whole` is `nmf`
    run_grid(left, plan.out, jobs=4, command=stand_in, done=plan.write_finished)
    parts, dictionary = (read_rows(tmp_path / f"{name}.jsonl") for name in ("parts", "dictionary"))
    assert [row["cell"] for row in parts[:6]] == list(select_cells("parts", find_training("patchwork")))
    assert len(dictionary) == 24 and not plan_of(tmp_path, "parts", "dictionary").remaining
    assert all(done for _, done in plan_of(tmp_path, "parts").states())
    for wrong, message in (
        ({"names": ["parts", "init"], "json": "rows.jsonl"}, "put {grid} where the name belongs"),
        ({"names": ["parts", "parts"]}, "give each grid once"),
        ({"names": ["parts", "init"], "only": ["whole"]}, "name one grid"),
    ):
        with pytest.raises(OptionError, match=message):
            AblationPlan.create(wrong.pop("names"), "patchwork", tmp_path, seeds=[0], **wrong)


def test_rows_are_written_when_runs_end_and_resumed_elsewhere(tmp_path):
    plan = plan_of(tmp_path, "parts", seeds=[0])
    plan.begin()

    def note(cell):
        plan.write_finished(cell)
        assert len(read_rows(tmp_path / "parts.jsonl")) == len(rows(plan.remaining, plan.out))
        if len(read_rows(tmp_path / "parts.jsonl")) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run_grid(plan.remaining, plan.out, command=stand_in, done=note)
    assert [row["cell"] for row in read_rows(tmp_path / "parts.jsonl")] == ["baseline", "whole"]
    elsewhere = AblationPlan.create(
        ["parts"], "patchwork", tmp_path / "new", seeds=[0], json=str(tmp_path / "parts.jsonl")
    )
    assert [cell.variant for cell in elsewhere.remaining] == [
        "without-ham",
        "without-upper",
        "without-lower",
        "only-ham",
    ]


@pytest.mark.full
def test_evaluations_of_one_network_share_a_process(tmp_path):
    plan = plan_of(tmp_path, "steps", "dictionary", "inside", seeds=[0])
    queue = plan.queue
    assert sorted(name for cell in queue for name in cell.names) == sorted(cell.name for cell in plan.remaining)
    together = {cell.name: cell for cell in queue if len(cell.names) > 1}
    assert len(together) == 12 + 3  # networks with other steps, with drawn dictionaries
    out = tmp_path / "runs"
    words = together["vq-k3-at1-seed0"].command(out, None)
    assert words[3:] == [
        *("eval-solver", str(out / "vq-k3-seed0"), "--steps", "1,6,12,50", "--split", "val"),
        *("--json", str(out / "vq-k3-at{}-seed0" / "result.json")),
    ]

    def several(cell, out, data):
        code = "".join(f"p = pathlib.Path({str(out / name)!r}); " + WRITE for name in cell.names)
        return [sys.executable, "-c", f"import pathlib; {code}"]

    plan.begin()
    run_grid(queue, out, jobs=4, command=several, done=plan.write_finished)
    assert not plan_of(tmp_path, "steps", "dictionary", "inside", seeds=[0]).queue
    assert [len(read_rows(tmp_path / f"{name}.jsonl")) for name in ("steps", "dictionary", "inside")] == [63, 12, 14]
    (out / "vq-k3-at6-seed0" / "result.json").unlink()
    (tmp_path / "steps.jsonl").unlink()
    (left,) = plan_of(tmp_path, "steps", seeds=[0]).queue
    assert left.names == ("vq-k3-at6-seed0",) and left.command(out, None)[6] == "6"


def test_results_without_needed_weights_are_retrained(tmp_path):
    names = {"only": ["nmf-drawn1", "vq"]}
    run_grid(plan_of(tmp_path, "dictionary", seeds=[0], **names).remaining, tmp_path / "runs", command=stand_in)
    for name in ("nmf", "vq"):
        (tmp_path / "runs" / f"{name}-seed0" / "best.safetensors").unlink()
    (tmp_path / "runs" / "nmf-drawn1-seed0" / "result.json").unlink()
    plan = plan_of(tmp_path, "dictionary", seeds=[0], **names)
    plan.begin()
    run_grid(plan.remaining, plan.out, command=stand_in, done=plan.write_finished)
    assert {cell.variant: starts(plan.out, cell) for cell in plan.remaining} == {"nmf": 2, "nmf-drawn1": 2, "vq": 1}
    assert len(read_rows(tmp_path / "dictionary.jsonl")) == 3
