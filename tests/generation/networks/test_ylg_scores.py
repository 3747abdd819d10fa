"""Three ways to YLG's attention, one result."""

from __future__ import annotations

import pytest
import torch

from hamburger.errors import OptionError
from hamburger.generation.networks.layers import LayerFactory
from hamburger.generation.networks.ylg import SparseAttention


def block(scores, align, size=8):
    torch.manual_seed(3)
    made = SparseAttention(64, size=size, layers=LayerFactory(), align=align, scores=scores)
    made.gate.data.fill_(1.0)
    return made


@pytest.mark.parametrize("size", [4, 8, 12])
@pytest.mark.parametrize("align", ["tile", "nearest"])
@pytest.mark.parametrize("scores", ["fused", "sparse"])
def test_values_and_gradients_are_those_of_the_published_form(scores, align, size):
    x = torch.randn(2, 64, size, size)
    found = []
    for way in ("dense", scores):
        made, own = block(way, align, size), x.clone().requires_grad_()
        y = made(own)
        y.square().sum().backward()
        found.append([y.detach(), own.grad, *(p.grad for p in made.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


def test_state_dicts_are_the_same():
    assert block("sparse", "tile").state_dict().keys() == block("dense", "tile").state_dict().keys()


def test_a_way_that_there_is_not():
    with pytest.raises(OptionError, match="no scores 'flash'"):
        block("flash", "tile")
