"""The blocks of DFN, and one link of its chain, against plain functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close, relative_error

from hamburger.contexts.dfn import CAB, DFN, RRB
from hamburger.errors import OptionError


def randomise(layer):
    for tensor in [*layer.parameters(), *(b for n, b in layer.named_buffers() if "running" in n)]:
        tensor.data = torch.rand_like(tensor) + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor) * 0.3
    return layer.eval().double()


def norm_relu(norm, x):
    return F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias))


def rrb(block, x, relu=True):
    (first, norm, _), second = block.refine
    t = torch.einsum("ca,bahw->bchw", block.project.weight[:, :, 0, 0], x)
    y = F.conv2d(norm_relu(norm, F.conv2d(t, first.weight, padding=1)), second.weight, padding=1) + t
    return F.relu(y) if relu else y


def cab(block, low, high):
    first, _, second, _ = block.weigh
    pooled = torch.cat([low, high.expand_as(low)], 1).flatten(2).mean(2)
    hidden = F.relu(pooled @ first.weight.T + first.bias)
    w = 1 / (1 + torch.exp(-(hidden @ second.weight.T + second.bias)))
    return w[:, :, None, None] * low + high


@pytest.mark.parametrize("relu", [True, False])
def test_refinement_residual_block(relu):
    block, x = randomise(RRB(4, 6, relu=relu)), torch.randn(2, 4, 5, 7, dtype=torch.float64)
    assert_close(block(x), rrb(block, x, relu))
    assert (block(x) < 0).any() != relu


@pytest.mark.parametrize("high_size", [(5, 7), (1, 1)])
@pytest.mark.parametrize("reduction", [1, 2])
def test_channel_attention_block(high_size, reduction):
    block = randomise(CAB(6, reduction=reduction))
    low, high = (torch.randn(2, 6, *size, dtype=torch.float64) for size in ((5, 7), high_size))
    assert_close(block(low, high), cab(block, low, high))
    assert block.weigh[0].out_features == 6 // reduction
    assert relative_error(block(low, high), block(high.expand_as(low), low)) > 0.1  # which is which matters


def test_unit_matches_its_formula():
    layer, x = randomise(DFN(6)), torch.randn(2, 6, 5, 7, dtype=torch.float64)
    pooled = F.conv2d(x.mean((2, 3), keepdim=True), layer.context[0].weight)
    high = norm_relu(layer.context[1], pooled).expand_as(x)
    assert_close(layer(x), rrb(layer.after, cab(layer.attention, rrb(layer.before, x), high)))


def test_one_sample_trains_though_its_average_is_one_value():
    layer, x = DFN(6).train(), torch.randn(1, 6, 5, 7, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad.isfinite().all() and x.grad.norm() > 0


def test_parameters_and_their_start():
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    block = 512 * 512 + 2 * 9 * 512 * 512 + 2 * 512
    attention = 1024 * 512 + 512 + 512 * 512 + 512
    layer = DFN(512)
    assert count(layer.before) == block
    assert count(layer.attention) == attention
    assert count(layer) == 2 * block + attention + 512 * 512 + 2 * 512 == 11_014_144
    # normal with the fan of the input, for a ReLU
    assert abs(float(layer.before.project.weight.detach().std()) / (2 / 512) ** 0.5 - 1) < 0.02
    assert abs(float(layer.after.refine[1].weight.detach().std()) / (2 / (9 * 512)) ** 0.5 - 1) < 0.02


def test_messages():
    with pytest.raises(OptionError, match="reduction 4 does not divide the 6 channels; choose a divisor"):
        DFN(6, reduction=4)
    with pytest.raises(OptionError, match="RRB: out_channels must be"):
        RRB(4, 0)
