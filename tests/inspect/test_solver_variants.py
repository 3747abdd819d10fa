"""Trained hams evaluated with other steps and other dictionaries."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import OptionError
from hamburger.inspect.evaluation import solver_variants
from hamburger.segmentation.data import create_dataset
from hamburger.segmentation.evaluate import evaluate_segmenter, evaluate_variants
from hamburger.training.task import EvaluationProtocol


def override_solver(net, **settings):
    (switch,) = solver_variants(net, **{name: (value,) for name, value in settings.items()})
    switch()
    return net


@pytest.fixture(params=["nmf", "vq", "cd"])
def net(request):
    torch.manual_seed(0)
    return nn.Sequential(hb.Hamburger(16, ham=request.param, rank=4)).eval()


def test_step_override_matches_a_layer_with_those_steps(net):
    x = torch.rand(2, 16, 5, 5)
    other = hb.Hamburger(16, ham=net[0].ham.ham, eval_steps=13).eval()
    other.load_state_dict(net[0].state_dict())
    before = net(x)
    assert torch.equal(override_solver(net, steps=13)(x), other(x))
    assert not torch.equal(net(x), before)
    assert torch.equal(override_solver(net, steps=6)(x), before)


def test_drawn_dictionaries_differ_by_image_and_repeat_by_seed(net):
    x = torch.rand(1, 16, 5, 5).expand(3, -1, -1, -1)
    before = net(x)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    first = override_solver(net, draws=1)(x)
    assert torch.equal(override_solver(net, draws=1)(x), first)
    assert not torch.equal(override_solver(net, draws=2)(x), first)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, before)
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_no_overrides_change_nothing(net):
    x = torch.rand(1, 16, 5, 5)
    before = net(x)
    assert torch.equal(override_solver(net)(x), before)


def test_overrides_raise_without_a_ham():
    with pytest.raises(OptionError, match="this network has none"):
        override_solver(nn.Linear(2, 2), steps=3)
    with pytest.raises(OptionError, match="steps must be a whole number"):
        override_solver(hb.Hamburger(16, rank=4), steps=-1)
    with pytest.raises(OptionError, match="needs a spatial ham"):
        override_solver(hb.Hamburger(16, rank=4, version="v2+", dual=True), draws=1)


@pytest.mark.parametrize("context", ["nmf", "cd"])
@pytest.mark.parametrize("protocol", [EvaluationProtocol(), EvaluationProtocol((0.5, 1.0), flip=True)], ids=str)
@pytest.mark.parametrize("requested", [{"steps": (1, 6, 13)}, {"draws": (1, 2)}], ids=str)
def test_several_overrides_at_once_match_separate_evaluations(context, protocol, requested):
    """The backbone runs once per view of an image; the scores equal those of separate evaluations."""

    def built():
        torch.manual_seed(0)
        net = hb.create_model("hamnet", backbone="tiny", output_stride=4, num_classes=10, context=context)
        torch.nn.init.normal_(net.head.classifier[-1].weight)
        return net

    images = create_dataset("patchwork", "val", size=24, length=3)
    options = {"device": torch.device("cpu"), "mean": (0.5,) * 3, "std": (0.2,) * 3, "protocol": protocol}
    net, calls = built(), []
    first = next(module for module in net.backbone.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(lambda *_: calls.append(1))
    found = evaluate_variants(net, images, solver_variants(net, **requested), **options)
    original, ((name, values),) = type(net.backbone).forward, requested.items()
    assert net.backbone.forward.__func__ is original
    alone = [evaluate_segmenter(override_solver(built(), **{name: value}), images, **options) for value in values]
    assert found == alone and len({scores.miou for scores in alone}) > 1
    assert len(calls) == len(images) * len(protocol.scales) * (1 + protocol.flip)
