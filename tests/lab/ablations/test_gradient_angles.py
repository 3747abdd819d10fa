"""Gradient angles measured during training: correct values, no effect on the training."""

from __future__ import annotations

import json
import math

import pytest
import torch
from small_run import SETTINGS, reproducible_outputs, rows, small
from typer.testing import CliRunner

import hamburger as hb
from hamburger.cli.app import app
from hamburger.errors import OptionError
from hamburger.tasks import find_training, train
from hamburger.training.recipe import apply, digest
from hamburger.training.train import train as train_task
from hamburger_lab.ablations.gradient_angles import STRATEGIES, AngleTask, find_angle_recipe, measure_angles


def train_measured(*settings, run, accelerator="cpu"):
    recipe = apply(find_angle_recipe("patchwork"), [*SETTINGS, *settings])
    return train_task(AngleTask(), recipe, run, accelerator=accelerator)


def by_hand(net, images, strategy, seed):
    """Return the gradients of a new network with this strategy: all weights in one vector, and the ham's input."""
    net = hb.create_context(net, 8, grad=strategy, rank=3, steps=4).train()
    stem = torch.nn.Conv2d(3, 8, 1)
    torch.manual_seed(7)
    for parameter in (*stem.parameters(), *net.parameters()):
        torch.nn.init.normal_(parameter, std=0.3)
    whole = torch.nn.Sequential(stem, net)
    ham_inputs = []
    net.ham.register_forward_pre_hook(lambda _, args: (args[0].retain_grad(), ham_inputs.append(args[0]))[0])
    torch.manual_seed(seed)
    whole(images).square().sum().backward()
    return whole, torch.cat([p.grad.flatten() for p in whole.parameters()]), ham_inputs[0].grad.flatten()


@pytest.mark.parametrize("ham", ["nmf", "vq", "cd"])
def test_norms_and_cosines_match_each_strategy_computed_separately(ham):
    images = torch.rand(2, 3, 5, 5)
    alone = {strategy: by_hand(ham, images, strategy, seed=3) for strategy in STRATEGIES}
    whole = alone["one-step"][0]
    state = {name: value.clone() for name, value in whole.state_dict().items()}
    torch.manual_seed(3)
    rng_state = torch.get_rng_state()
    measured = measure_angles(whole, lambda: whole(images).square().sum())
    assert torch.equal(torch.get_rng_state(), rng_state)
    # the pass by hand has moved the norm's statistics of its own network once, this one not at all
    assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())
    assert whole[1].ham.grad == hb.one_step and whole[1].ham.backend == "auto"
    for place, at in (("weights", 1), ("input", 2)):
        reference = alone["bptt"][at].double()
        for strategy in STRATEGIES:
            key = f"{place}_{strategy.replace(':', '').replace('-', '_')}"
            gradient = alone[strategy][at].double()
            assert measured[f"norm_{key}"] == pytest.approx(gradient.norm().item(), rel=1e-4)
            if strategy != "bptt":
                expected = torch.nn.functional.cosine_similarity(gradient, reference, dim=0).item()
                assert measured[f"cosine_{key}"] == pytest.approx(expected, abs=1e-4)
    assert measured["cosine_weights_one_step"] < 1 - 1e-6


def test_measuring_angles_does_not_change_training(tmp_path):
    train(small(), tmp_path / "plain", accelerator="cpu")
    train_measured("angles_every=5", run=tmp_path / "measured")
    plain, measured = reproducible_outputs(tmp_path / "plain"), reproducible_outputs(tmp_path / "measured")
    series = measured[1].pop("angles")
    assert plain[1:] == measured[1:]
    assert [row for row in rows(tmp_path / "measured") if "angles" not in row] == rows(tmp_path / "plain")
    assert [row["step"] for row in series] == [0, 5, 10]
    assert all(-1 <= row["cosine_input_one_step"] <= 1 and row["norm_weights_bptt"] > 0 for row in series)


def test_values_that_are_not_finite_become_none():
    layer = hb.create_context("nmf", 8, rank=2)
    measured = measure_angles(layer, lambda: layer(torch.rand(1, 8, 4, 4)).sum() * math.inf)
    assert set(measured.values()) == {None}
    json.dumps(measured, allow_nan=False)


def test_a_network_without_a_ham_is_refused(tmp_path):
    with pytest.raises(OptionError, match="needs a network with a ham"):
        train_measured("model.context=sa", "model.context_options=none", run=tmp_path)
    with pytest.raises(OptionError, match="angles_every"):
        train_measured("angles_every=0", run=tmp_path)
    with pytest.raises(OptionError, match="needs a segmentation recipe"):
        find_angle_recipe("planes-tiny")


def test_the_recipe_digests_of_published_rows_are_unchanged():
    assert digest(find_training("patchwork")) == "cecd3ab31cf6bed4"
    assert digest(apply(find_angle_recipe("patchwork"), ["angles_every=33"])) == "15bc8d3f9d951a54"


def test_the_command_trains_and_compares(tmp_path):
    options = [text for setting in (*SETTINGS, "angles_every=6") for text in ("--set", setting)]
    arguments = ["angles", "patchwork", "--run", str(tmp_path / "run"), "--accelerator", "cpu", *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "comparisons in" in done.output
