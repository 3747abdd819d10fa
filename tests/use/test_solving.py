"""Trained hams evaluated with other sweeps and other dictionaries."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import OptionError
from hamburger.use.solving import solve_with


@pytest.fixture(params=["nmf", "vq", "cd"])
def net(request):
    torch.manual_seed(0)
    return nn.Sequential(hb.Hamburger(16, ham=request.param, rank=4)).eval()


def test_other_sweeps_are_those_of_a_layer_built_for_them(net):
    x = torch.rand(2, 16, 5, 5)
    other = hb.Hamburger(16, ham=net[0].ham.ham, eval_steps=13).eval()
    other.load_state_dict(net[0].state_dict())
    before = net(x)
    assert torch.equal(solve_with(net, steps=13)(x), other(x))
    assert not torch.equal(net(x), before)
    assert torch.equal(solve_with(net, steps=6)(x), before)


def test_drawn_dictionaries_differ_by_image_and_repeat_by_seed(net):
    x = torch.rand(1, 16, 5, 5).expand(3, -1, -1, -1)
    before = net(x)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    first = solve_with(net, draws=1)(x)
    assert torch.equal(solve_with(net, draws=1)(x), first)
    assert not torch.equal(solve_with(net, draws=2)(x), first)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, before)
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_nothing_asked_nothing_changed(net):
    x = torch.rand(1, 16, 5, 5)
    before = net(x)
    assert torch.equal(solve_with(net)(x), before)


def test_a_network_without_a_ham_has_nothing_to_change():
    with pytest.raises(OptionError, match="this network has no ham"):
        solve_with(nn.Linear(2, 2), steps=3)
    with pytest.raises(OptionError, match="steps must be a whole number"):
        solve_with(hb.Hamburger(16, rank=4), steps=-1)
    with pytest.raises(OptionError, match="along channels"):
        solve_with(hb.Hamburger(16, rank=4, version="v2+", dual=True), draws=1)
