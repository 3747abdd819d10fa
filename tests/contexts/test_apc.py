"""Adaptive pyramid context, position by position; parameter counts; both ways to merge the branches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference_layers import cbr, count, norm, randomise
from tolerances import assert_close

from hamburger.contexts.apc import APC


def scale_by_loops(block, x, s, global_info):
    b, _, h, w = x.shape
    u = cbr(block.reduce, x)
    cells = cbr(block.cells, F.adaptive_avg_pool2d(x, s)).flatten(2)
    source = x if global_info == "input" else u
    g = cbr(block.whole, source.flatten(2).mean(2)[:, :, None, None])
    z = torch.zeros_like(u)
    weight, bias = block.affinity.weight[:, :, 0, 0], block.affinity.bias
    for image in range(b):
        for i in range(h):
            for j in range(w):
                shares = 1 / (1 + (-(weight @ (u[image, :, i, j] + g[image, :, 0, 0]) + bias)).exp())
                z[image, :, i, j] = sum(shares[k] * cells[image, :, k] for k in range(s * s))
    y = (cbr(block.residual, z) + u).relu()
    return cbr(block.fusion, y) if isinstance(block.fusion, torch.nn.Sequential) else y


@pytest.mark.parametrize("global_info", ["input", "reduced"])
@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_formula(global_info, fusion, bias):
    layer = randomise(APC(6, global_info=global_info, fusion=fusion, bias=bias))
    x = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    o = [scale_by_loops(block, x, s, global_info) for block, s in zip(layer.scales, (1, 2, 3, 6), strict=True)]
    context = torch.cat([o[0] + o[2], o[1] + o[3]], 1) / 2
    assert_close(layer(x), x + context)


def test_bottleneck_matches_the_papers_head():
    layer = randomise(APC(6, width=5, scales=(2, 3), join="bottleneck"))
    x = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    o = [scale_by_loops(block, x, s, "input") for block, s in zip(layer.scales, (2, 3), strict=True)]
    y = F.conv2d(torch.cat([x, *o], 1), layer.bottleneck[0].weight, padding=1)
    assert_close(layer(x), norm(layer.bottleneck[1], y).relu())


def test_parameter_counts():
    assert count(APC(512)) == 2_125_362
    assert round(2_125_362 / 2**20, 2) == 2.03  # Table 3
    assert count(APC(512, global_info="reduced", bias=False)) == 1_858_098  # the port's wiring
    assert count(APC(512, fusion=False)) == 2_125_362 - 4 * (256 * 256 + 3 * 256)
    assert count(APC(512, join="bottleneck")) == 2_125_362 + 9 * (512 + 1024) * 512 + 2 * 512


def test_biases_before_batch_norm_change_nothing_in_training():
    with_bias, without = APC(8), APC(8, bias=False)
    without.load_state_dict({k: v for k, v in with_bias.state_dict().items() if k in without.state_dict()})
    x = torch.randn(3, 8, 9, 9)
    assert_close(with_bias.train()(x), without.train()(x), slack=10)


def test_the_affinity_is_not_normalised():
    layer = randomise(APC(4, scales=(2, 3)))
    x = torch.randn(1, 4, 6, 6, dtype=torch.float64)
    for block in layer.scales:
        block.affinity.weight.data.zero_()
        block.affinity.bias.data.fill_(40.0)  # every share is one: a sum of all cells, not a mean
    block = layer.scales[0]
    total = cbr(block.cells, F.adaptive_avg_pool2d(x, 2)).sum((2, 3), keepdim=True).expand(1, 2, 6, 6)
    actual = block(x, x.mean((2, 3), keepdim=True))
    assert_close(actual, cbr(block.fusion, (cbr(block.residual, total) + cbr(block.reduce, x)).relu()))


def test_a_batch_of_one_trains_though_the_coarsest_grid_is_one_value():
    layer = APC(8).train()
    before = layer.scales[0].cells[1].running_mean.clone()
    layer(torch.randn(1, 8, 5, 5)).sum().backward()
    assert torch.equal(layer.scales[0].cells[1].running_mean, before)
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: APC(7), "4 branches of width 3 do not fold onto 7 channels; .*join='bottleneck'"),
        (lambda: APC(8, scales=(1, 2, 3)), "3 branches of width 4 do not fold onto 8 channels"),
        (lambda: APC(8, scales=()), "at least one size"),
        (lambda: APC(8, scales=(0, 1)), "each of the scales must be a whole number of at least 1"),
        (lambda: APC(8, global_info="inptu"), "did you mean 'input'"),
        (lambda: APC(8, join="residul"), "did you mean 'residual'"),
        (lambda: APC(8, width=0), "width must be"),
        (lambda: APC(1), "channels must be a whole number of at least 2"),
    ],
)
def test_messages(build, message):
    with pytest.raises(ValueError, match=message):
        build()
