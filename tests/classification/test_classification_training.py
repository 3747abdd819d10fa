"""Classification training: run folder, repeatability, resume and errors."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict

import pytest
import torch
from small_run import reproducible_outputs, rows
from typer.testing import CliRunner

import hamburger as hb
from hamburger.classification.hamformer import Hamformer
from hamburger.classification.model import create_classifier
from hamburger.classification.recipe import ClassificationRecipe, check_classification_recipe, classification_recipes
from hamburger.classification.task import CLASSIFICATION
from hamburger.cli.app import app
from hamburger.errors import Interrupted
from hamburger.segmentation import load_weights
from hamburger.tasks import find_training, train
from hamburger.training.metrics_log import CheckpointSaved, RunStarted, ScoresEvaluated, StepLogged
from hamburger.training.recipe import apply, read_recipe, to_json

SETTINGS = ("data.options.length=48", "batch=8", "steps=12", "log_every=5", "eval_every=6", "checkpoint_every=4")


def small(*settings):
    return apply(classification_recipes.create("figures-classes"), [*SETTINGS, *settings])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run, events = tmp_path_factory.mktemp("runs") / "undisturbed", []
    return run, events, train(small(), run, accelerator="cpu", on_event=events.append)


def test_the_run_folder_is_complete(finished):
    run, events, result = finished
    stored = json.loads((run / "result.json").read_text())
    assert stored == result.values and stored["task"] == "classification"
    assert (stored["steps"], stored["seed"], stored["context"], stored["after"]) == (12, 0, "nmf", "layer1")
    assert 0 <= stored["accuracy"] <= stored["best_accuracy"] <= 1
    assert [row["step"] for row in rows(run) if "loss" in row] == [5, 10, 12]
    assert [row["step"] for row in rows(run) if "accuracy" in row] == [6, 12]
    assert [event.step for event in events if isinstance(event, CheckpointSaved)] == [4, 6, 8, 12]
    assert isinstance(events[0], RunStarted) and {StepLogged, ScoresEvaluated} <= {type(event) for event in events}
    assert (
        read_recipe((run / "recipe.json").read_text(), ClassificationRecipe)
        == find_training(str(run / "recipe.json"))
        == small()
    )


def test_repeated_and_resumed_runs_have_the_same_bits(finished, tmp_path):
    torch.manual_seed(77)
    train(small(), tmp_path / "again", accelerator="cpu")
    assert reproducible_outputs(tmp_path / "again") == reproducible_outputs(finished[0])

    def stop(event):
        if isinstance(event, StepLogged) and event.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped at step 5 of 12"):
        train(small(), tmp_path / "stopped", accelerator="cpu", on_event=stop)
    train(small(), tmp_path / "stopped", accelerator="cpu", resume=True)
    assert reproducible_outputs(tmp_path / "stopped") == reproducible_outputs(finished[0])


def test_micro_batches_see_the_same_images(tmp_path):
    """Batch norm sees the parts one by one, so only the images and not the losses can be compared."""
    train(small("accumulate=2", "steps=2"), tmp_path / "run", accelerator="cpu")
    assert rows(tmp_path / "run")[-1]["images"] == 48


def test_the_command_trains_and_scores_by_the_task_of_the_recipe(finished, tmp_path):
    run, _, result = finished
    command = CliRunner()
    file = tmp_path / "recipe.json"
    file.write_text(to_json(small("model.context=efficient", "steps=6")))
    trained = command.invoke(app, ["train", str(file), "--run", str(tmp_path / "run"), "--accelerator", "cpu"])
    assert trained.exit_code == 0 and "accuracy" in trained.output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["context"] == "efficient"
    scored = command.invoke(app, ["eval", str(run), "--json", str(tmp_path / "scores.json"), "--device", "cpu"])
    assert scored.exit_code == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["accuracy"] == result.values["best_accuracy"] and scores["images"] == 48
    assert isinstance(command.invoke(app, ["eval", str(run), "--flip"]).exception, (hb.OptionError, SystemExit))
    listed = command.invoke(app, ["list", "recipes"]).output.split()
    assert {"patchwork", "figures-classes", "cifar10-classes"} <= set(listed)


def test_weights_describe_themselves(finished):
    run, _, result = finished
    net, info = CLASSIFICATION.load(run / "best.safetensors")
    assert info.classes == ("disc", "square", "cross", "ring") and info.extra["step"] == result.values["best_step"]
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 4)
    with pytest.raises(hb.CheckpointError, match=r"of the task 'segmentation' \(got 'classification'"):
        load_weights(run / "best.safetensors")
    with pytest.raises(hb.CheckpointError, match="there is no file"):
        CLASSIFICATION.load(run / "none.safetensors")


@pytest.mark.parametrize("context", [None, "sa", "efficient", "nmf"])
def test_the_contexts_that_are_compared(context):
    net = create_classifier("resnet10t", num_classes=4, context=context, size=32)
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 4)
    assert ("net.layer3.inserted_context.gate" in net.state_dict()) is (context is not None)


def test_a_small_stem_keeps_positions():
    net = create_classifier("resnet18", num_classes=4, stem="small", context="efficient")
    seen = []
    net.net.layer3.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    net(torch.rand(1, 3, 32, 32))
    assert seen == [(1, 256, 8, 8)]
    with pytest.raises(hb.OptionError, match="needs a ResNet whose stem is one convolution and a pool"):
        create_classifier("convnext_atto", num_classes=4, stem="small")


@pytest.mark.parametrize("name", classification_recipes.names())
def test_a_context_has_more_positions_than_a_ham_has_atoms(name):
    recipe = classification_recipes.create(name)
    net = create_classifier(**asdict(recipe.model), num_classes=4, size=recipe.data.size).eval()
    burgers = [module for module in net.modules() if isinstance(module, hb.Hamburger)]
    assert len(burgers) == (len(net.net.blocks) if isinstance(net.net, Hamformer) else 1)
    seen = []
    for burger in burgers:
        burger.ham.register_forward_hook(lambda module, args, output: seen.append((module, *args[0].shape[1:])))
    net(torch.rand(1, 3, recipe.data.size, recipe.data.size))
    assert len(seen) == len(burgers)
    for layer, channels, n in seen:
        assert n >= 64 and layer.ham.rank < min(channels, n)


def test_the_embedded_recipe_learns_in_its_few_steps(tmp_path):
    result = train(classification_recipes.create("figures-classes"), tmp_path / "run", accelerator="cpu").values
    assert result["accuracy"] > 0.9  # a guess would be right in 0.25


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("batch=1",), "two images at once, .*; --set batch=2$"),
        (("batch=4", "accumulate=4"), "two images at once, .*; --set batch=8$"),
        (("keep=first",), "keep"),
        (("model.stem=smal",), "did you mean 'small'"),
        (("optim.lr=0",), "optim.lr"),
        (("optim.kind=adam",), "no optim.kind 'adam'; did you mean 'adamw'"),
        (("data.resident=maybe",), "data.resident"),
        (("data.padding=-1",), "data.padding must be a whole number of at least 0"),
        (("task=segments",), "task"),
    ],
)
def test_invalid_recipes_are_refused(settings, message):
    with pytest.raises(hb.OptionError, match=message):
        check_classification_recipe(small(*settings))


def test_unknown_names_suggest_the_nearest_of_any_task():
    with pytest.raises(hb.UnknownNameError, match=r"did you mean 'figures-classes'.*patchwork"):
        find_training("figure-classes")
    with pytest.raises(hb.UnknownNameError, match="no submodule 'layr3'; did you mean 'layer3'"):
        create_classifier("resnet10t", num_classes=4, context="sa", after="layr3")
    with pytest.raises(hb.UnknownNameError, match="timm has no model 'resnett18'; did you mean 'resnet18'"):
        create_classifier("resnett18", num_classes=4)
    with pytest.raises(hb.OptionError, match=r"'vit_tiny_patch16_224'.*'stem_width'; its options are those of timm"):
        create_classifier("vit_tiny_patch16_224", num_classes=4, backbone_options={"stem_width": 8})


@pytest.mark.parametrize("name", classification_recipes.names())
def test_every_recipe_can_be_checked(name):
    check_classification_recipe(classification_recipes.create(name))
