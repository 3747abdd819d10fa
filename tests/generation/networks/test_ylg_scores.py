"""Both implementations of YLG's attention give the same result."""

from __future__ import annotations

import pytest
import torch

from hamburger.errors import OptionError
from hamburger.generation.networks.contexts import SparseAttention
from hamburger.generation.networks.layers import LayerFactory


def block(scores, size=8):
    torch.manual_seed(3)
    attention = SparseAttention(64, size=size, layers=LayerFactory(), scores=scores)
    attention.gate.data.fill_(1.0)
    return attention


@pytest.mark.parametrize("size", [4, 8, 12])
def test_values_and_gradients_of_both_implementations_agree(size):
    x = torch.randn(2, 64, size, size)
    results = []
    for scores in ("dense", "fused"):
        attention, inputs = block(scores, size), x.clone().requires_grad_()
        y = attention(inputs)
        y.square().sum().backward()
        results.append([y.detach(), inputs.grad, *(p.grad for p in attention.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


def test_unknown_implementation_raises():
    with pytest.raises(OptionError, match="no scores 'flash'"):
        block("flash")
