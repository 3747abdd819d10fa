"""Commands work for every task: its scores, its best weights, and no score of another task."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
import small_tasks
from rich.console import Console
from small_run import rows

import hamburger as hb
from hamburger.classification.task import CLASSIFICATION, ClassificationTask
from hamburger.cli import compare
from hamburger.errors import OptionError
from hamburger.generation.recipe import GanRecipe
from hamburger.report.page import write_report
from hamburger.tasks import find_training, task_named, task_of, task_of_weights, tasks, train
from hamburger.tasks.sweep import cells, check_grid, variants
from hamburger.training.recipe import apply, to_json
from hamburger.training.task import Metric
from hamburger_lab.ablations.cells import ablation_cells
from hamburger_lab.cli import ablate

ERROR = Metric("epe", "EPE", "px", higher=False)
SMALL = ("data.options.length=32", "batch=8", "steps=6", "eval_every=2", "checkpoint_every=6")


@pytest.fixture
def depth(monkeypatch):
    """A task that is judged by an error in pixels; its recipes are those of classifiers under another name."""

    class Depth(ClassificationTask):
        name, networks, metrics, pooled, member_metric = "depth", "Depth", (ERROR,), "over all", None

    monkeypatch.setitem(tasks, "depth", Depth())


def test_every_recipe_belongs_to_a_task():
    assert list(tasks) == ["segmentation", "classification", "detection", "stereo"]
    for task in tasks.values():
        for name in task.recipes:
            assert task_of(find_training(name)) is task
    with pytest.raises(hb.InputError, match="no task trains a GanRecipe"):
        task_of(GanRecipe("x"))
    with pytest.raises(hb.InputError, match=r"'clasification'.*did you mean 'classification'"):
        task_named("clasification", "here")
    with pytest.raises(hb.InputError, match="here is for a GAN: use `ham gan train`"):
        task_named("generation", "here")
    assert task_named(None, "here") is tasks["segmentation"]


def test_importing_the_recipes_loads_no_heavy_package():
    code = "import hamburger.tasks, sys; print(*{'lightning', 'torchvision', 'timm', 'PIL'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize("name", ["patchwork", "figures-classes", "shapes-detect", "planes-tiny"])
def test_weights_store_their_validation_split(name):
    """`ham eval` of a run scores that split."""
    recipe = apply(find_training(name), ["data.val_split=held-out"])
    some = SimpleNamespace(classes=("a", "b"), palette=None)
    assert task_of(recipe).info(recipe, SimpleNamespace(train=some, val=some)).extra["val_split"] == "held-out"


@pytest.mark.parametrize("task", ["segmentation", "classification", "detection", "stereo"])
def test_options_of_a_context_that_was_removed_count_for_nothing(task):
    recipe = small_tasks.small(task, "model.context=none", "model.context_options.rank=2")
    opened = task_of(recipe).open(recipe, None, check=False, note=print)
    assert task_of(recipe).build(recipe, opened).config["context"] is None


def test_score_knows_if_higher_is_better():
    share = Metric("miou", "mIoU")
    assert share.is_better(0.7, 0.6) and not share.is_better(0.6, 0.6) and not share.is_better(0.5, 0.6)
    assert ERROR.is_better(0.6, 0.7) and not ERROR.is_better(0.7, 0.7)
    assert (share.describe(0.712), share.heading, share.format_difference(-0.01)) == (
        "mIoU 71.20 %",
        "mIoU, %",
        "-1.00",
    )
    assert (ERROR.describe(1.25), ERROR.heading, ERROR.format_difference(0.5)) == ("EPE 1.25 px", "EPE, px", "+0.50")


def test_best_weights_have_the_lowest_score_if_lower_is_better(tmp_path, monkeypatch):
    monkeypatch.setattr(CLASSIFICATION, "metrics", (Metric("accuracy", "error", "", higher=False),), raising=False)
    result = train(apply(find_training("figures-classes"), SMALL), tmp_path / "run", accelerator="cpu").values
    accuracies = {row["step"]: row["accuracy"] for row in rows(tmp_path / "run") if "accuracy" in row}
    assert result["best_accuracy"] == min(accuracies.values()) < max(accuracies.values())
    assert accuracies[result["best_step"]] == result["best_accuracy"]
    weights = tmp_path / "run" / "best.safetensors"
    assert task_of_weights(weights).load(weights)[1].extra["accuracy"] == result["best_accuracy"]


@pytest.mark.parametrize("name", ["gradient", "parts", "steps", "contexts"])
def test_ablation_grids_support_other_tasks(name, tmp_path):
    check_grid(ablation_cells(name, "figures-classes", seeds=[0]), tmp_path)
    check_grid(cells("figures-classes", variants(["baseline", "sa-flash"]), [0], ()), tmp_path)


@pytest.mark.parametrize("name", ["latent", "inside"])
def test_segmentation_grids_raise_for_other_tasks(name):
    with pytest.raises(hb.OptionError, match="needs a segmentation recipe"):
        ablation_cells(name, "figures-classes", seeds=[0])


def lines(table):
    console = Console(width=200, file=StringIO())
    console.print(table)
    return console.file.getvalue().splitlines()


def test_comparison_table_uses_the_score_of_the_task(depth):
    about = {"task": "depth", "recipe": "planes", "protocol": "one view", "hardware": "here", "torch": "2", "steps": 5}
    about |= {"images_per_s": 1.0, "peak_mb": 1.0, "ablation": "parts", "loss": None, "seconds": 1.0}
    results = [{**about, "context": name, "cell": name, "epe": value} for name, value in (("sa", 1.25), ("nmf", 2.5))]
    compared = lines(compare.comparison_table(results))
    assert "validation EPE" in compared[0] and "EPE, px" in compared[2]
    assert [line.split()[1] for line in compared if "sa " in line or "nmf " in line] == ["nmf", "sa"]  # best last
    assert any("1.250" in line for line in compared)
    ablated = "\n".join(lines(ablate.table(results)))
    assert "EPE, px" in ablated and "1.25" in ablated and "125" not in ablated


def test_report_uses_the_score_of_the_task(depth, tmp_path):
    for seed in range(3):
        for context, value in ((None, 2.0 + seed / 10), ("nmf", 1.5)):
            run = tmp_path / "runs" / f"{context}-{seed}"
            run.mkdir(parents=True)
            recipe = apply(find_training("figures-classes"), [f"model.context={context or 'none'}", f"seed={seed}"])
            (run / "recipe.json").write_text(to_json(replace(recipe, task="depth")))
            (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "epe": value}) + "\n")
            (run / "result.json").write_text(json.dumps({"epe": value}))
    text = write_report([tmp_path / "runs"], tmp_path / "report.html").read_text()
    assert "The lowest mean EPE is that of nmf: 1.50 px" in text and "nmf minus baseline is -0.60 px" in text
    assert "Validation EPE" in text and "mIoU" not in text and "<h1>Depth on figures</h1>" in text


@pytest.mark.parametrize(
    ("task", "setting"),
    [
        ("segmentation", "data.options.self=1"),
        ("segmentation", "model.context_options.channels=1"),
        ("segmentation", "model.head_options.channels=1"),
        ("segmentation", "model.backbone_options.name=1"),
        ("classification", "data.options.size=1"),
        ("generation", "data.options.size=1"),
        ("generation", "data.options.name=1"),
    ],
)
def test_options_that_take_the_place_of_arguments_are_refused(task, setting, tmp_path):
    """A recipe may come from anybody."""
    with pytest.raises(OptionError, match=r"(self|channels|name|size)'?[ ,]") as refused:
        small_tasks.train(task, tmp_path / "run", setting)
    assert "\n" not in str(refused.value)
