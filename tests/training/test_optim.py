"""The three groups, the schedule, and the update they make."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from hamburger.contexts import create_context, list_contexts
from hamburger.training.optim import groups, learning_rate, optimizer_of, set_rate
from hamburger.training.recipe import AdamOptim, Optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 2)
        self.gate = nn.Parameter(torch.zeros(1))
        self.wide_gate = nn.Parameter(torch.zeros(1, 1, 1, 1))
        self.frozen = nn.Parameter(torch.zeros(2, 2), requires_grad=False)


def test_every_parameter_is_in_one_group():
    net = Net()
    weights, scales, biases = ({id(p) for p in group["params"]} for group in groups(net, Optim()))
    assert weights == {id(net.conv.weight), id(net.linear.weight)}
    assert scales == {id(net.norm.weight), id(net.gate), id(net.wide_gate)}
    assert biases == {id(net.conv.bias), id(net.norm.bias), id(net.linear.bias)}


@pytest.mark.parametrize("name", list_contexts())
def test_context_parameters_are_in_exactly_one_group(name):
    net = create_context(name, 32)
    actual = [id(p) for group in groups(net, Optim()) for p in group["params"]]
    assert sorted(actual) == sorted(id(p) for p in net.parameters() if p.requires_grad)


def test_optimizer_step_matches_a_calculation_by_hand():
    """Decay on weights alone, biases at twice the rate, then momentum."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    optim = Optim(lr=0.1, momentum=0.9, weight_decay=0.01, bias_lr=2.0)
    expected = {name: p.detach().double().clone() for name, p in net.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in expected.items()}
    optimizer = optimizer_of(net, optim)
    x = torch.randn(5, 3)
    for rate in (0.1, 0.05):
        set_rate(optimizer, rate)
        optimizer.zero_grad()
        net(x).square().sum().backward()
        for name, p in net.named_parameters():
            gradient = p.grad.double() + (0.01 * expected[name] if name == "0.weight" else 0)
            velocity[name] = gradient if rate == 0.1 else 0.9 * velocity[name] + gradient
            expected[name] -= rate * (2 if name.endswith("bias") else 1) * velocity[name]
        optimizer.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach().double(), expected[name], rtol=1e-5, atol=1e-6)


def test_learning_rate_is_poly_after_warmup():
    optim = Optim(lr=0.009, power=0.9)
    assert learning_rate(optim, 0, 100) == 0.009
    assert learning_rate(optim, 50, 100) == pytest.approx(0.009 * 0.5**0.9)
    assert 0 < learning_rate(optim, 99, 100) < 0.009 * 0.02
    warm = Optim(lr=1.0, power=1.0, warmup=4)
    assert [learning_rate(warm, step, 100) for step in range(5)] == pytest.approx(
        [0.25, 0.5 * 0.99, 0.75 * 0.98, 0.97, 0.96]
    )
    assert learning_rate(Optim(lr=1.0, warmup=50), 9, 10) > 0


ADAMW = Optim(kind="adamw", lr=0.1, momentum=0.8)


def test_adamw_takes_momentum_as_its_first_beta():
    optimizer = optimizer_of(nn.Linear(3, 2), ADAMW)
    assert isinstance(optimizer, torch.optim.AdamW) and optimizer.defaults["betas"] == (0.8, 0.999)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [1e-4, 0, 0]


@pytest.mark.parametrize("optim", [Optim(lr=0.1), AdamOptim(lr=0.1, weight_decay=0.01), ADAMW])
def test_updates_and_state_are_those_of_torch(optim):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    other = copy.deepcopy(net)
    ours = optimizer_of(net, optim)
    base = type(ours).__mro__[1]
    assert base in (torch.optim.SGD, torch.optim.AdamW)
    theirs = base(
        groups(other, optim),
        **{name: ours.defaults[name] for name in ("lr", "momentum", "betas") if name in ours.defaults},
    )
    x = torch.randn(5, 3)
    for _ in range(3):
        for one, optimizer in ((net, ours), (other, theirs)):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(dict(net.state_dict()), dict(other.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def test_a_step_does_not_import_the_compiler():
    code = """
import sys, torch
from hamburger.training.optim import optimizer_of
from hamburger.training.recipe import AdamOptim, Optim
for optim in (Optim(), AdamOptim()):
    net = torch.nn.Linear(2, 2)
    optimizer = optimizer_of(net, optim)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
