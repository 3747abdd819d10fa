"""All implementations of YLG's attention give the same result."""

from __future__ import annotations

import pytest
import torch

from hamburger.errors import OptionError
from hamburger.generation.networks.layers import LayerFactory
from hamburger.generation.networks.ylg import SparseAttention


def block(scores, align, size=8):
    torch.manual_seed(3)
    attention = SparseAttention(64, size=size, layers=LayerFactory(), align=align, scores=scores)
    attention.gate.data.fill_(1.0)
    return attention


@pytest.mark.parametrize("size", [4, 8, 12])
@pytest.mark.parametrize("align", ["tile", "nearest"])
@pytest.mark.parametrize("scores", ["fused", "sparse"])
def test_values_and_gradients_match_the_dense_implementation(scores, align, size):
    x = torch.randn(2, 64, size, size)
    results = []
    for way in ("dense", scores):
        attention, inputs = block(way, align, size), x.clone().requires_grad_()
        y = attention(inputs)
        y.square().sum().backward()
        results.append([y.detach(), inputs.grad, *(p.grad for p in attention.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


def test_state_dicts_are_the_same():
    assert block("sparse", "tile").state_dict().keys() == block("dense", "tile").state_dict().keys()


def test_unknown_implementation_raises():
    with pytest.raises(OptionError, match="no scores 'flash'"):
        block("flash", "tile")
