"""Attention with its matrix in memory is the fused attention: the same values and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import assert_close, relative_error
from torch import nn

import hamburger as hb

CASES = [
    ("sa", {"heads": 2}),
    ("acf", {}),
    ("acf", {"heads": 2, "mixtures": 3, "pool": False}),
    ("da", {}),
    ("nonlocal", {}),
    ("nonlocal", {"mode": "gaussian", "pool": True}),
    ("nonlocal", {"scale": False}),
]


def both(name, options):
    torch.manual_seed(0)
    fused = hb.create_context(name, channels=16, **options)
    for parameter in fused.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)
    held = hb.create_context(name, channels=16, materialise=True, **options)
    held.load_state_dict(fused.state_dict())
    return fused.eval(), held.eval()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_materialised_and_fused_match_in_values_and_gradients(name, options):
    fused, held = (copy.deepcopy(layer).double() for layer in both(name, options))
    a, b = (torch.linspace(-1, 1, 2 * 16 * 35, dtype=torch.float64).view(2, 16, 5, 7).requires_grad_() for _ in "ab")
    ours, theirs = fused(a), held(b)
    assert_close(ours, theirs, slack=5)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    assert_close(a.grad, b.grad, slack=5)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_half_precision_is_finite_and_near_float32(name, options, precision):
    _, held = both(name, options)
    x = 30 * torch.randn(2, 16, 6, 6)
    with torch.autocast("cpu", dtype=precision):
        out = held(x)
    assert out.isfinite().all()
    assert relative_error(out, held(x)) < 0.2


def test_dropout_of_materialised_weights_acts_in_training_only():
    _, held = both("acf", {"dropout": 0.5})
    x = torch.randn(2, 16, 6, 6)
    assert torch.equal(held(x), held(x))
    held.train()
    assert not torch.equal(held(x), held(x))


def test_materialise_needs_a_softmax_mode():
    with pytest.raises(hb.errors.OptionError, match="materialise belongs to the softmax modes"):
        hb.create_context("nonlocal", channels=16, mode="dot_product", materialise=True)
