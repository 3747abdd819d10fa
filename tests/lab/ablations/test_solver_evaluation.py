"""Trained hams evaluated with other steps and other dictionaries."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import OptionError
from hamburger_lab.ablations.solver_evaluation import solver_variants


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
    first = override_solver(net, dictionary_seeds=1)(x)
    assert torch.equal(override_solver(net, dictionary_seeds=1)(x), first)
    assert not torch.equal(override_solver(net, dictionary_seeds=2)(x), first)
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
        override_solver(hb.Hamburger(16, rank=4, version="v2+", dual=True), dictionary_seeds=1)
