"""Stereo end to end: the run folder, bit-exact resume after a kill, commands, files, the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace

import fake_stereo
import numpy as np
import pytest
import torch
from paths import SHARED
from PIL import Image
from small_run import reproducible_outputs, rows
from typer.testing import CliRunner

import hamburger as hb
from hamburger.cli.app import app
from hamburger.errors import Interrupted
from hamburger.segmentation import load_weights
from hamburger.stereo.data import StereoBatch, StereoSample, StereoSet, create_stereo_set
from hamburger.stereo.data.files import read_pfm
from hamburger.stereo.evaluate import evaluate_stereo
from hamburger.stereo.model import create_stereo, smooth_l1_loss
from hamburger.stereo.predict import (
    ERROR_COLOURS,
    StereoVisualizer,
    choose_png_scale,
    colour_disparity,
    colour_errors,
)
from hamburger.stereo.recipe import check_stereo_recipe, stereo_recipes
from hamburger.stereo.task import STEREO
from hamburger.tasks import find_training, task_of_weights, tasks, train
from hamburger.tasks.sweep import cells, variants
from hamburger.training.metrics_log import ScoresEvaluated, StepLogged
from hamburger.training.recipe import apply, to_json

SETTINGS = (
    *("data.options.height=32", "data.options.width=64", "data.options.max_disparity=12", "data.options.length=8"),
    *("data.crop=24,48", "data.flip=true", "data.photometric=0.2"),
    *("model.width=8", "model.groups=2", "model.volume_width=2", "model.max_disparity=16"),
    *("batch=2", "steps=8", "log_every=3", "eval_every=4", "checkpoint_every=3"),
)
REAL = SHARED / "data" / "stereo"


def small(*settings):
    return apply(stereo_recipes.create("planes-tiny"), [*SETTINGS, *settings])


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run, events = tmp_path_factory.mktemp("runs") / "nmf", []
    return run, events, train(small(), run, accelerator="cpu", on_event=events.append)


def test_the_run_folder_is_complete(finished):
    run, events, result = finished
    stored = json.loads((run / "result.json").read_text())
    assert stored == result.values and stored["task"] == "stereo"
    assert (stored["steps"], stored["context"], stored["place"], stored["images"]) == (8, "nmf", "features", 8)
    assert 0 < stored["best_epe"] <= stored["epe"] and 0 <= stored["over_3"] <= stored["over_1"] <= 1
    assert stored["epe_seen"] is not None and stored["beyond_reach"] == 0 and len(stored["per_pair"]) == 8
    assert [row["step"] for row in rows(run) if "loss" in row] == [3, 6, 8]
    assert [row["step"] for row in rows(run) if "epe" in row] == [4, 8]
    judged = [event for event in events if isinstance(event, ScoresEvaluated)][-1]
    assert {metric.name: value for metric, value in judged.scores}["epe"] == stored["epe"]
    assert find_training(str(run / "recipe.json")) == small()


def test_scores_match_numpy_over_all_pixels(finished):
    run, _, result = finished
    net, info = STEREO.load(run / "best.safetensors")
    pairs = create_stereo_set("planes", "val", **info.extra["data_options"])
    errors, seen = [], []
    for sample in pairs:
        left, right = (
            (
                (image.numpy() / np.float32(255) - np.float32(info.mean)[:, None, None])
                / np.float32(info.std)[:, None, None]
            )
            for image in (sample.left, sample.right)
        )
        with torch.no_grad():
            guess = net(torch.from_numpy(left)[None], torch.from_numpy(right)[None])[0].numpy()
        errors.append(np.abs(guess.astype(np.float64) - sample.disparity.numpy()).ravel())
        seen.append(sample.seen.numpy().ravel())
    errors, seen = np.concatenate(errors), np.concatenate(seen)
    assert result.values["best_epe"] == pytest.approx(errors.mean(), rel=1e-4)
    if result.values["best_step"] == 8:
        assert result.values["over_1"] == pytest.approx((errors > 1).mean(), abs=1e-3)
        assert result.values["epe_seen"] == pytest.approx(errors[seen].mean(), rel=1e-4)


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from types import SimpleNamespace
torch.set_num_threads(1)
from hamburger.training.metrics_log import StepLogged
from hamburger.tasks import find_training
from hamburger.tasks import train
def kill(event):
    if isinstance(event, StepLogged) and event.step == 6 and "--kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
train(find_training(sys.argv[1]), sys.argv[2], accelerator="cpu", on_event=kill)
"""


def test_resuming_after_a_kill_or_an_interruption_is_bit_exact(finished, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(to_json(small()))
    command = [sys.executable, "-c", KILLED, str(recipe), str(tmp_path / "killed")]
    killed = subprocess.run([*command, "--kill"], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "killed" / "last.ckpt").exists() and not (tmp_path / "killed" / "result.json").exists()
    train(small(), tmp_path / "killed", accelerator="cpu", resume=True)
    assert reproducible_outputs(tmp_path / "killed") == reproducible_outputs(finished[0])

    def stop(event):
        if isinstance(event, StepLogged) and event.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    torch.manual_seed(77)
    with pytest.raises(Interrupted, match="stopped at step 3 of 8"):
        train(small(), tmp_path / "stopped", accelerator="cpu", on_event=stop)
    train(small(), tmp_path / "stopped", accelerator="cpu", resume=True)
    assert reproducible_outputs(tmp_path / "stopped") == reproducible_outputs(finished[0])


def test_parts_weigh_as_many_pixels_as_they_have():
    guess, truth = torch.rand(4, 6, 6) * 12, torch.rand(4, 6, 6) * 20
    truth[truth < 8] = 0  # unknown; some others lie beyond the reach of 16
    truth[0] = 0
    parts = [StereoBatch(guess[i : i + 2], guess[i : i + 2], truth[i : i + 2], []) for i in (0, 2)]
    shares = [weights[""] for weights in STEREO.loss_weights(SimpleNamespace(max_disparity=16), parts)]
    total = sum(
        share * smooth_l1_loss(part.left, part.disparity, most=16) for share, part in zip(shares, parts, strict=True)
    )
    assert torch.allclose(total, smooth_l1_loss(guess, truth, most=16))
    assert shares[0] != shares[1]


def test_commands_take_the_task_from_the_weights(finished, tmp_path):
    run, _, result = finished
    command = CliRunner()
    scored = command.invoke(app, ["eval", str(run), "--json", str(tmp_path / "scores.json"), "--device", "cpu"])
    assert scored.exit_code == 0 and "EPE" in scored.output and "above 3 px" in scored.output
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["epe"] == result.values["best_epe"] and scores["data"] == "planes"
    assert isinstance(command.invoke(app, ["eval", str(run), "--flip"]).exception, hb.OptionError)
    listed = command.invoke(app, ["list", "recipes"]).output.split()
    assert {"planes", "planes-tiny", "sceneflow", "figures-classes"} <= set(listed)
    assert command.invoke(app, ["list", "stereo-sets"]).output.split() == ["middlebury", "planes", "sceneflow"]


def test_a_folder_is_evaluated_as_a_set_in_files(finished, tmp_path):
    run, _, _ = finished
    fake_stereo.middlebury(tmp_path / "pairs")
    json_file = tmp_path / "scores.json"
    words = ["eval", str(run), "--data", str(tmp_path / "pairs"), "--json", str(json_file), "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    scores = json.loads(json_file.read_text())
    assert scores["data"] == "middlebury" and set(scores["per_pair"]) == {"aloe", "art", "cones", "motorcycle", "piano"}
    assert scores["epe_seen"] is None and "seen by both" not in done.output
    assert scores["protocol"].startswith("full size, all known pixels") and scores["shrink"] == 1
    halved = CliRunner().invoke(app, [*words, "--option", "shrink=2"])
    assert halved.exit_code == 0 and "at 1/2 of the size, in pixels of that size, all known pixels" in halved.output
    again = json.loads(json_file.read_text())
    assert again["epe"] != scores["epe"] and again["shrink"] == 2 and "full size" not in again["protocol"]
    (tmp_path / "pairs" / "cones" / "im6.png").unlink()
    assert "im6.png: missing" in str(CliRunner().invoke(app, words).exception)
    fake_stereo.sceneflow(tmp_path / "flow")
    done = CliRunner().invoke(app, [*words[:3], str(tmp_path / "flow"), *words[4:]])
    assert done.exit_code == 0 and json.loads(json_file.read_text())["data"] == "sceneflow"


def test_scores_of_seen_pixels_name_their_number_of_pairs(finished, tmp_path):
    truths = fake_stereo.middlebury(tmp_path / "pairs")
    fake_stereo.write_png(tmp_path / "pairs" / "cones" / "disp6.png", truths["cones"], scale=4)
    fake_stereo.write_png(tmp_path / "pairs" / "piano" / "mask0nocc.png", np.full_like(truths["piano"], 255))
    json_file = tmp_path / "scores.json"
    words = ["eval", str(finished[0]), "--data", str(tmp_path / "pairs"), "--json", str(json_file), "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    scores = json.loads(json_file.read_text())
    assert (scores["images"], scores["images_seen"]) == (5, 2)
    mean = np.mean(list(scores["per_pair"].values()))
    assert scores["epe_pair_mean"] == pytest.approx(mean) and scores["epe_pair_mean"] != scores["epe"]
    assert f"EPE mean over pairs {mean:.2f} px, " in done.output
    assert f"EPE seen by both (2 of 5 pairs) {scores['epe_seen']:.2f} px, above 3 px seen by both (2 of 5 pairs) " in (
        done.output
    )


def test_checking_pairs_from_the_command_line(tmp_path):
    fake_stereo.middlebury(tmp_path)
    words = ["data", "check", "middlebury", "--data", str(tmp_path), "--split", "val"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "5 pairs, 32 x 24, disparities up to 8 px" in done.output
    (tmp_path / "cones" / "im6.png").unlink()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "1 problem, listed above" in done.stderr and "im6.png" in done.stderr


def test_training_on_files(tmp_path):
    tree = fake_stereo.sceneflow(tmp_path / "tree")
    settings = ("data.name=sceneflow", "data.options=none", "steps=2", "eval_every=2", "data.workers=2")
    result = train(small(*settings), tmp_path / "run", data=tree, accelerator="cpu")
    assert result.values["data"] == "sceneflow" and result.values["images"] == 2
    heard: list[str] = []
    reach = small(*settings).model.max_disparity
    fake_stereo.write_pfm(
        tree / "disparity" / "TRAIN/A/0000" / "left" / "0001.pfm",
        np.full((fake_stereo.H, fake_stereo.W), reach + 8, np.float32),
    )
    for option, notes in ((), 1), (("data.options.shrink=2",), 0):
        recipe = small("data.name=sceneflow", "data.options=none", *option)
        tasks["stereo"].open(recipe, tree, check=True, note=heard.append)
        assert len(heard) == notes and all(f"go up to {reach + 8} px" in line for line in heard)
        heard.clear()
    (tree / "frames_cleanpass" / "TEST/A/0000" / "right" / "0000.png").unlink()
    (tree / "disparity" / "TRAIN/A/0000" / "left" / "0001.pfm").unlink()
    with pytest.raises(hb.DataError) as error:
        train(small(*settings), tmp_path / "again", data=tree, accelerator="cpu")
    assert "0001.pfm: missing" in str(error.value) and "right/0000.png: missing" in str(error.value)
    assert not (tmp_path / "again" / "recipe.json").exists()


def test_predicting_pairs(finished, tmp_path):
    run, _, _ = finished
    fake_stereo.middlebury(tmp_path / "pairs")
    left, right = (tmp_path / "pairs" / "cones" / name for name in ("im2.png", "im6.png"))
    words = ["predict", str(run), str(left), str(right), "--out", str(tmp_path / "out"), "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "256 times the disparity" in done.output, done.exception
    exact = read_pfm(tmp_path / "out" / "im2_disparity.pfm")
    with Image.open(tmp_path / "out" / "im2_disparity.png") as png:
        assert png.mode == "I;16" and png.text["disparity_scale"] == "256"
        assert np.abs(np.array(png) / 256 - exact).max() <= 1 / 256
    with Image.open(tmp_path / "out" / "im2_colours.png") as png:
        assert png.size == (32, 24) and png.mode == "RGB"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["scale"] == 256 and summary["images"][0]["highest"] == pytest.approx(exact.max())
    net, _ = STEREO.load(run / "best.safetensors")
    data = create_stereo_set("middlebury", "val", tmp_path / "pairs")
    one = data[data.ids.index("cones")]
    scores = evaluate_stereo(net, SinglePairSet(one), max_disparity=16, device=torch.device("cpu"))
    known = one.disparity.numpy() > 0
    assert scores.epe == pytest.approx(np.abs(exact - one.disparity.numpy())[known].mean(), rel=1e-5)

    assert CliRunner().invoke(app, words).exit_code == 0  # our own files may be written again
    everything = CliRunner().invoke(app, [*words[:2], str(tmp_path / "pairs"), *words[4:]])
    assert everything.exit_code == 0 and (tmp_path / "out" / "piano_disparity.pfm").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "im2_disparity.pfm").write_text("mine")
    for bad, message in (
        ([*words[:5], str(tmp_path / "other")], "would overwrite"),
        ([*words[:3], *words[4:]], "takes pairs of images"),
        ([*words, "--flip"], "--flip does not apply to the task 'stereo'"),
    ):
        assert message in str(CliRunner().invoke(app, bad).exception)


class SinglePairSet(StereoSet):
    """A set of one pair."""

    ids = ("one",)

    def __init__(self, sample):
        self.sample = sample

    def __getitem__(self, index):
        return self.sample


def test_an_unreadable_pair_does_not_stop_the_others(finished, tmp_path):
    fake_stereo.middlebury(tmp_path / "pairs")
    (tmp_path / "pairs" / "cones" / "im6.png").write_bytes(b"")
    words = ["predict", str(finished[0]), str(tmp_path / "pairs"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "im6.png" in done.stderr and (tmp_path / "out" / "piano_disparity.png").exists()


def test_weights_describe_themselves(finished):
    run, _, result = finished
    net, info = STEREO.load(run / "best.safetensors")
    assert info.extra["step"] == result.values["best_step"] and info.extra["epe"] == result.values["best_epe"]
    assert net.config == create_stereo(**asdict(small().model)).config
    assert task_of_weights(run / "best.safetensors").name == "stereo"
    with pytest.raises(hb.CheckpointError, match=r"of the task 'segmentation' \(got 'stereo'"):
        load_weights(run / "best.safetensors")
    with pytest.raises(hb.CheckpointError, match="there is no file"):
        STEREO.load(run / "none.safetensors")


def test_a_comparison_runs_and_its_report_shows_disparities(tmp_path):
    recipe, out = tmp_path / "recipe.json", tmp_path / "compared"
    recipe.write_text(to_json(small("steps=2", "eval_every=2")))
    contexts = ["none", "sa-flash", "efficient", "nmf"]
    for cell in cells(str(recipe), variants(contexts), [0], ()):  # as its processes would, which are slow to start
        train(cell.resolved(), out / cell.name, accelerator="cpu")
    words = ["compare", str(recipe), "--contexts", ",".join(contexts), "--seeds", "0", "--out", str(out)]
    done = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "rows.jsonl")])
    assert done.exit_code == 0, done.exception
    compared = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["context"] for row in compared] == contexts and all(row["epe"] > 0 for row in compared)
    assert "EPE, px" in done.output
    page = (out / "report.html").read_text()
    shown = page.count("<span>true disparity, up to")  # four drawn by lot, then where one gains or loses
    assert 4 < shown <= 12 and page.count("<span>errors, EPE") == 3 * shown
    assert "Further scores" in page and "EPE mean over pairs, px" in page and ">EPE seen by both, px<" in page
    assert "Stereo networks on planes" in page and "baseline (seed 0)" in page
    assert "1 ... 3 px off" in page and "backbone" not in page and 'id="atoms"' not in page


def test_errors_are_drawn_in_three_colours():
    drawn = colour_errors(torch.tensor([[5.0, 6.0, 7.0, 9.0, 5.0]]), torch.tensor([[5.0, 5.0, 5.0, 5.0, 0.0]]))
    colours = [tuple(drawn[:, 0, x].tolist()) for x in range(5)]
    assert colours == [ERROR_COLOURS[i] for i in (0, 0, 1, 2, 3)]


def test_a_pair_is_judged_by_its_known_pixels():
    truth = torch.tensor([[5.0, 0.0], [7.0, 9.0]])
    visualizer = StereoVisualizer([StereoSample(torch.zeros(3, 2, 2), torch.zeros(3, 2, 2), truth)])
    assert visualizer.judge(0, truth + torch.tensor([[1.0, 50.0], [-2.0, 0.0]])) == pytest.approx(1.0)
    assert not visualizer.metric.higher


def test_near_objects_are_brighter():
    drawn = colour_disparity(torch.tensor([[0.0, 0.5, 2.0, 5.0, 8.0, 10.0, 20.0]]), 10).float().mean(0)[0]
    assert drawn[0] == 128 and (drawn[1:6].diff() > 0).all() and drawn[5] == drawn[6]
    assert [choose_png_scale(reach) for reach in (32, 255, 256, 1000)] == [256, 256, 128, 64]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("keep=first",), "keep"),
        (("task=depth",), "task"),
        (("channels_last=true",), "five axes"),
        (("model.max_disparity=20",), "a multiple of 16 .got 20.; use 32"),
        (("model.place=volume", "model.context=psp"), "uses neighbours"),
        (("model.gate=half",), "model.gate"),
        (("optim.beta1=1",), "optim.beta1"),
        (("optim.lr=0",), "optim.lr"),
        (("data.crop=0,8",), "data.crop"),
        (("data.crop=8",), "data.crop: takes 2"),
        (("data.photometric=2",), "data.photometric"),
        (("batch=3", "accumulate=2"), "batch=4"),
    ],
)
def test_invalid_recipes_raise(settings, message):
    with pytest.raises(hb.OptionError, match=message):
        check_stereo_recipe(small(*settings))


@pytest.mark.parametrize("name", stereo_recipes.names())
def test_every_stereo_recipe_can_be_checked(name):
    check_stereo_recipe(stereo_recipes.create(name))


@pytest.mark.skipif(not REAL.is_dir(), reason="the real pairs are not on this machine")
def test_the_real_pairs_are_scored(finished, tmp_path):
    json_file = tmp_path / "scores.json"
    words = ["eval", str(finished[0]), "--data", str(REAL), "--option", "shrink=4", "--json", str(json_file)]
    done = CliRunner().invoke(app, [*words, "--device", "cpu"])
    assert done.exit_code == 0, done.exception
    scores = json.loads(json_file.read_text())
    assert set(scores["per_pair"]) == {"aloe", "cones", "motorcycle", "teddy"} and 0 < scores["beyond_reach"] < 1
    assert "at 1/4 of the size" in scores["protocol"] and scores["shrink"] == 4


@pytest.mark.gpu
def test_training_in_bf16_on_a_gpu(tmp_path):
    for place in ("features", "volume"):
        settings = ("steps=60", "eval_every=60", "precision=bf16", "data.options.length=16", f"model.place={place}")
        result = train(small(*settings), tmp_path / place, accelerator="cuda")
        losses = [row["loss"] for row in rows(tmp_path / place) if "loss" in row]
        assert losses[-1] < losses[0] and np.isfinite(result.values["epe"])
