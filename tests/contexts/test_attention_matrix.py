"""`attention` returns the matrix that the output is computed with."""

from __future__ import annotations

import pytest
import torch

import hamburger as hb
from hamburger.contexts.da import PositionAttention


@pytest.mark.parametrize("heads", [1, 4])
def test_self_attention(heads):
    layer, x = hb.create_context("sa", 8, heads=heads).double(), torch.randn(2, 8, 3, 5).double()
    mixed = layer.split(layer.values(x)).transpose(2, 3) @ layer.attention(x).mT  # b heads d n
    expected = x + layer.out(mixed.flatten(1, 2).unflatten(2, (3, 5)))
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("mode", ["embedded_gaussian", "gaussian", "dot_product", "concatenation"])
@pytest.mark.parametrize("pool", [False, True])
def test_non_local(mode, pool):
    torch.manual_seed(0)
    layer = hb.create_context("nonlocal", 8, mode=mode, pool=pool, norm="none").double()
    torch.nn.init.normal_(layer.out.weight)
    x = torch.randn(2, 8, 3, 5).double()
    values = layer.pool(layer.values(x)).flatten(2)
    expected = x + layer.out((values @ layer.attention(x).squeeze(1).mT).unflatten(2, (3, 5)))
    torch.testing.assert_close(layer(x), expected)


def test_dual_attention():
    layer, x = PositionAttention(8, inner=2).double(), torch.randn(2, 8, 3, 5).double()
    torch.nn.init.constant_(layer.gate, 0.5)
    mixed = layer.values(x).flatten(2) @ layer.attention(x).squeeze(1).mT
    torch.testing.assert_close(layer(x), x + 0.5 * mixed.unflatten(2, (3, 5)))
