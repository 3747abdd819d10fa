"""Detection end to end: the run folder, bit-exact resume after a kill, scores, commands, files, the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from fake_coco import coco, write
from PIL import Image
from small_run import reproducible_outputs, rows
from typer.testing import CliRunner

import hamburger as hb
from hamburger.cli.app import app
from hamburger.detection.data import create_detection_set
from hamburger.detection.data.coco import read_mask
from hamburger.detection.evaluate import evaluate_detector
from hamburger.detection.predict import ObjectVisualizer, count_correct
from hamburger.detection.recipe import check_detection_recipe, detection_recipes
from hamburger.detection.task import DETECTION
from hamburger.errors import CheckpointError, Interrupted, TrainingError
from hamburger.segmentation import load_weights
from hamburger.tasks import find_training, task_of_weights, train
from hamburger.tasks.sweep import GridError, cells, check_grid, variants
from hamburger.training.metrics_log import Note, ScoresEvaluated, StepLogged
from hamburger.training.recipe import apply, to_json
from hamburger.training.trainer import Trainer

MODEL = (
    *("model.size=64", "model.max_size=64", "model.channels=16", "model.hidden=32"),
    *("model.sampled=32", "model.proposals=50"),
)
STEPS = ("batch=2", "steps=8", "log_every=3", "eval_every=4", "checkpoint_every=3", "optim.warmup=2")
SETTINGS = (*MODEL, *STEPS, "data.options.size=64", "data.options.length=6", "data.crop=64", "data.scales=0.8,1.25")


def small(*settings):
    return apply(detection_recipes.create("shapes-detect"), [*SETTINGS, *settings])


def small_coco(*settings):
    """A recipe for a small set in COCO's layout."""
    return apply(
        detection_recipes.create("coco-maskrcnn"),
        [
            *(*MODEL, *STEPS, "steps=2", "eval_every=2", "data.crop=40", "data.workers=0", "precision=32"),
            *("model.backbone=tiny", "model.norm=batch", "model.frozen=0", "model.pretrained=none", *settings),
        ],
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run, events = tmp_path_factory.mktemp("runs") / "nmf", []
    return run, events, train(small(), run, accelerator="cpu", on_event=events.append)


def test_the_run_folder_is_complete(finished):
    run, events, result = finished
    stored = json.loads((run / "result.json").read_text())
    assert stored == result.values and stored["task"] == "detection"
    assert (stored["steps"], stored["context"], stored["after"], stored["images"]) == (8, "nmf", "p3", 6)
    assert 0 <= stored["mask_map"] <= stored["best_mask_map"] <= 1 and stored["mask"]["map"] == stored["mask_map"]
    assert set(stored["box"]) == set(stored["mask"]) and len(stored["box"]) == 12 and len(stored["per_class"]) == 10
    assert [row["step"] for row in rows(run) if "loss" in row] == [3, 6, 8]
    assert set(rows(run)[0]["terms"]) == {"classifier", "box_reg", "mask", "objectness", "rpn_box_reg"}
    judged = [event for event in events if isinstance(event, ScoresEvaluated)][-1]
    assert {metric.name: value for metric, value in judged.scores}["box_map"] == stored["box_map"]
    assert find_training(str(run / "recipe.json")) == small()


KILLED = """
import os, signal, sys, torch
torch.set_num_threads(1)
from hamburger.training.metrics_log import StepLogged
from hamburger.tasks import find_training
from hamburger.tasks import train
def kill(event):
    if isinstance(event, StepLogged) and event.step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
train(find_training(sys.argv[1]), sys.argv[2], accelerator="cpu", on_event=kill)
"""


def test_resuming_after_a_kill_or_an_interruption_is_bit_exact(finished, tmp_path):
    torch.manual_seed(77)
    recipe = tmp_path / "recipe.json"
    recipe.write_text(to_json(small()))
    process = subprocess.run([sys.executable, "-c", KILLED, str(recipe), str(tmp_path / "killed")], check=False)
    assert process.returncode == -signal.SIGKILL and not (tmp_path / "killed" / "result.json").exists()
    train(small(), tmp_path / "killed", accelerator="cpu", resume=True)
    assert reproducible_outputs(tmp_path / "killed") == reproducible_outputs(finished[0])

    def stop(event):
        if isinstance(event, StepLogged) and event.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped at step 3 of 8"):
        train(small(), tmp_path / "stopped", accelerator="cpu", on_event=stop)
    train(small(), tmp_path / "stopped", accelerator="cpu", resume=True)
    assert reproducible_outputs(tmp_path / "stopped") == reproducible_outputs(finished[0])


class FixedOutputs(torch.nn.Module):
    """A network that returns given outputs, one after another."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = iter(outputs)

    def forward(self, images):
        return [next(self.outputs)]


def shifted_objects(scenes, shift):
    """Every object, moved to the right by `shift` pixels."""
    for scene in scenes:
        boxes = scene.boxes + torch.tensor([shift, 0.0, shift, 0.0])
        yield {"boxes": boxes, "labels": scene.labels, "masks": scene.masks.roll(shift, 2)} | {
            "scores": torch.linspace(1, 0.5, len(boxes))
        }


def test_scores_match_torchmetrics():
    from torchmetrics.detection import MeanAveragePrecision

    scenes = create_detection_set("shapes", "val", size=64, length=8)
    ours = evaluate_detector(FixedOutputs(shifted_objects(scenes, 2)), scenes, device=torch.device("cpu"))
    grid = {"iou_thresholds": np.linspace(0.5, 0.95, 10).tolist(), "rec_thresholds": np.linspace(0, 1, 101).tolist()}
    judge = MeanAveragePrecision(iou_type=("bbox", "segm"), **grid)
    for objects, scene in zip(shifted_objects(scenes, 2), scenes, strict=True):
        judge.update([objects], [{"boxes": scene.boxes, "labels": scene.labels, "masks": scene.masks}])
    theirs = judge.compute()
    assert ours.box_map == pytest.approx(theirs["bbox_map"].item(), abs=1e-6)
    assert ours.mask_map == pytest.approx(theirs["segm_map"].item(), abs=1e-6) and 0 < ours.mask_map < 1
    assert ours.mask["map_50"] == pytest.approx(theirs["segm_map_50"].item(), abs=1e-6)
    assert ours.mask["mar_100"] == pytest.approx(theirs["segm_mar_100"].item(), abs=1e-6)
    exact = evaluate_detector(FixedOutputs(shifted_objects(scenes, 0)), scenes, device=torch.device("cpu"))
    assert exact.mask_map == exact.box_map == pytest.approx(1) and exact.mask["map_large"] is None  # none is so large


def ham(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_commands_take_the_task_from_the_weights(finished, tmp_path):
    run, _, result = finished
    scored = ham("eval", run, "--json", tmp_path / "scores.json", "--device", "cpu")
    assert scored.exit_code == 0 and "mask mAP" in scored.output
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["mask_map"] == result.values["best_mask_map"] and scores["task"] == "detection"
    assert ham("eval", run, "--flip").exit_code != 0
    assert "coco shapes" in ham("list", "detection-sets").output
    checked = ham("data", "check", "shapes", "--option", "length=3", "--split", "val")
    assert "shapes, val: 3 images, 128 x 128" in checked.output and "disc-warm" in checked.output


def test_predictions_are_json_and_overlays(finished, tmp_path):
    run = finished[0]
    scene = create_detection_set("shapes", "val", size=64, length=1)[0]
    Image.fromarray(scene.image.movedim(0, -1).numpy()[:40]).save(tmp_path / "a.png")
    made = ham("predict", run, tmp_path / "a.png", "--out", tmp_path / "out", "--score", "0.01", "--device", "cpu")
    assert made.exit_code == 0, made.output
    objects = json.loads((tmp_path / "out" / "a.json").read_text())["objects"]
    net, info = DETECTION.load(run / "best.safetensors")
    with torch.no_grad():
        output = net([scene.image[:, :40].float() / 255])[0]
    kept = output["scores"] >= 0.01
    assert len(objects) == kept.sum() > 0
    for entry, label, box, mask in zip(
        objects, *(output[name][kept] for name in ("labels", "boxes", "masks")), strict=True
    ):
        assert entry["class"] == info.classes[label] and entry["box"] == box.tolist()
        assert np.array_equal(read_mask(entry["mask"], (40, 64)), mask.numpy())
    with Image.open(tmp_path / "out" / "a_overlay.jpg") as overlay:
        assert overlay.size == (256, 160)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert sum(summary["images"][0]["objects"].values()) == len(objects) and "0.01" in summary["protocol"]
    for option in ("--flip", "--max-pixels=9999"):
        assert ham("predict", run, tmp_path / "a.png", "--out", tmp_path / "no", option).exit_code != 0


def test_the_report_shows_detections(finished, tmp_path):
    train(small("model.context=none", "steps=4"), tmp_path / "none", accelerator="cpu")
    made = ham("report", finished[0], tmp_path / "none", "--out", tmp_path / "report.html")
    assert made.exit_code == 0, made.output
    text = (tmp_path / "report.html").read_text()
    assert "<h1>Mask R-CNN on shapes</h1>" in text and "mask mAP" in text and "mIoU" not in text
    assert text.count("objects</") == 4 and "baseline: " in text and "nmf: " in text


def test_found_objects_count_once():
    scenes = create_detection_set("shapes", "val", size=64, length=1)
    scene, visualizer = scenes[0], ObjectVisualizer(scenes)
    m = len(scene.labels)
    twice = {"labels": scene.labels.repeat(2), "masks": scene.masks.repeat(2, 1, 1)}
    assert count_correct(twice, scene) == m and visualizer.judge(0, twice) == pytest.approx(2 / 3)
    assert count_correct({"labels": (scene.labels + 1) % 10, "masks": scene.masks}, scene) == 0
    assert count_correct({"labels": scene.labels, "masks": scene.masks.roll(30, 2)}, scene) < m
    nothing = {"labels": scene.labels[:0], "masks": scene.masks[:0]}
    assert count_correct(nothing, scene) == 0 and visualizer.judge(0, nothing) == 0
    assert visualizer.judge(0, {"labels": scene.labels, "masks": scene.masks}) == 1


def test_weights_describe_themselves(finished):
    weights = finished[0] / "best.safetensors"
    assert task_of_weights(weights).name == "detection"
    net, info = DETECTION.load(weights)
    assert info.classes[0] == "disc-warm" and net.config["after"] == "p3" and not net.training
    with pytest.raises(hb.CheckpointError, match=r"of the task 'segmentation' \(got 'detection'"):
        load_weights(weights)


def test_training_on_files_notes_dropped_annotations(tmp_path):
    for split, images in (("train2017", 3), ("val2017", 2)):
        content = coco(tmp_path / "coco", split, images=images)
        if split == "train2017":
            content["annotations"][0]["bbox"][2] = 0
            (tmp_path / "coco" / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    recipe = small_coco()
    events = []
    result = train(recipe, tmp_path / "run", data=tmp_path / "coco", accelerator="cpu", on_event=events.append)
    assert list(result.values["per_class"]) == ["square", "triangle"] and result.values["images"] == 2
    notes = [event.text for event in events if isinstance(event, Note)]
    assert any("'train2017': 1 invalid annotations are left out" in note for note in notes)
    scored = ham("eval", tmp_path / "run", "--data", tmp_path / "coco", "--device", "cpu")
    assert scored.exit_code == 0 and "coco val2017, 2 images" in scored.output
    (tmp_path / "coco" / "val2017" / "000.png").unlink()
    with pytest.raises(hb.DataError, match=r"val2017/000\.png: missing"):
        train(recipe, tmp_path / "again", data=tmp_path / "coco", accelerator="cpu")


@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_resuming_with_edited_annotations_raises(split, tmp_path):
    content = {name: coco(tmp_path / "coco", name, images=2) for name in ("train2017", "val2017")}
    run = {"data": tmp_path / "coco", "accelerator": "cpu"}

    def stop(event):
        if isinstance(event, StepLogged) and event.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped at step 1 of 2"):
        train(small_coco("log_every=1"), tmp_path / "run", on_event=stop, **run)
    before = [path.read_bytes() for path in sorted((tmp_path / "run").iterdir()) if path.is_file()]
    content[split]["annotations"][1]["bbox"][2] -= 1
    write(tmp_path / "coco", split, content[split])
    with pytest.raises(
        CheckpointError, match=r"last\.ckpt was written with other data: .*annotations.*begin a new run"
    ):
        train(small_coco("log_every=1"), tmp_path / "run", resume=True, **run)
    assert [path.read_bytes() for path in sorted((tmp_path / "run").iterdir()) if path.is_file()] == before
    content[split]["annotations"][1]["bbox"][2] += 1
    write(tmp_path / "coco", split, content[split])
    assert train(small_coco("log_every=1"), tmp_path / "run", resume=True, **run).values["steps"] == 2


def test_every_context_of_the_comparison_has_a_recipe(tmp_path):
    named = variants(["none", "sa", "sa-flash", "sa-materialised", "efficient", "nmf", "breads"])
    check_grid(cells("shapes-maskrcnn", named, [0, 1, 2], ()), tmp_path)
    for name in detection_recipes:
        check_detection_recipe(detection_recipes.create(name))


def test_running_out_of_memory_raises_one_line(tmp_path, monkeypatch):
    def full(self, step, parts):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB.")

    monkeypatch.setattr(Trainer, "train_step", full)
    with pytest.raises(TrainingError, match=r"ran out of memory in step 1.*accumulate=2.*no checkpoint"):
        train(small(), tmp_path / "run", accelerator="cpu")


def test_a_grid_shows_finished_runs_when_others_failed(tmp_path, monkeypatch):
    from hamburger.cli import compare as shown

    planned = cells("shapes-detect", variants(["none", "sa-materialised"]), [0], SETTINGS)
    train(planned[0].resolved(), tmp_path / planned[0].name, accelerator="cpu")

    def failed(*args, **options):
        raise GridError(
            "compare: 1 of 2 runs failed, the others are kept: sa-materialised-seed0 (exit 2): out of memory"
        )

    monkeypatch.setattr(shown, "run_grid", failed)
    with pytest.raises(GridError, match="out of memory"):
        shown.run_and_show_grid(planned, tmp_path, json=tmp_path / "rows.jsonl")
    [row] = (json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["context"] == "none" and (tmp_path / "report.html").exists()


def test_a_killed_grid_has_written_its_rows(tmp_path, monkeypatch):
    from hamburger.cli import compare as shown

    planned = cells("shapes-detect", variants(["none", "sa-materialised"]), [0], SETTINGS)

    def killed(grid, out, *, done, **options):
        train(grid[0].resolved(), out / grid[0].name, accelerator="cpu")
        done(grid[0])
        raise SystemExit(137)

    monkeypatch.setattr(shown, "run_grid", killed)
    with pytest.raises(SystemExit):
        shown.run_and_show_grid(planned, tmp_path, json=tmp_path / "rows.jsonl")
    [row] = (json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["context"] == "none"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("compile=true",), "compile=true"),
        (("model.norm=frozen",), "model.norm=frozen needs pretrained weights"),
        (("model.sampled=0",), "model.sampled"),
        (("data.scales=2,1",), "from small to large"),
        (("task=detect",), "task"),
        (("keep=first",), "keep"),
    ],
    ids=str,
)
def test_invalid_recipes_raise(settings, message):
    with pytest.raises(hb.OptionError, match=message):
        check_detection_recipe(small(*settings))


def test_splits_with_different_classes_raise(tmp_path):
    coco(tmp_path, "train2017")
    content = coco(tmp_path, "val2017")
    content["categories"].append({"id": 9, "name": "star"})
    write(tmp_path, "val2017", content)
    with pytest.raises(hb.DataError, match=r"'train2017' and 'val2017' differ, star in one of them only; both must"):
        DETECTION.open(detection_recipes.create("coco-maskrcnn"), tmp_path, check=True, note=print)
    content["categories"] = [{"id": 3, "name": "triangle"}, {"id": 7, "name": "square"}]
    write(tmp_path, "val2017", content)
    with pytest.raises(hb.DataError, match="differ, in their order"):
        DETECTION.open(detection_recipes.create("coco-maskrcnn"), tmp_path, check=True, note=print)
