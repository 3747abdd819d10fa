"""Pyramid pooling against cell means and bilinear weights written out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from reference_layers import cbr, count, norm, randomise
from tolerances import assert_close

from hamburger.contexts.psp import PSP, pool_to_grid, resize_from_grid


def cells(x, s):
    h, w = x.shape[2:]
    y = torch.zeros(*x.shape[:2], s, s, dtype=x.dtype)
    for i in range(s):
        for j in range(s):
            rows = slice(i * h // s, math.ceil((i + 1) * h / s))
            columns = slice(j * w // s, math.ceil((j + 1) * w / s))
            y[:, :, i, j] = x[:, :, rows, columns].mean((2, 3))
    return y


def tents(length, s):
    """Linear weights of s cells for every position, the outermost of both on top of each other."""
    at = torch.linspace(0, s - 1, length, dtype=torch.float64)[:, None]
    return (1 - (at - torch.arange(s)).abs()).clamp_min(0)


def pyramid(layer, x, scales):
    h, w = x.shape[2:]
    return [
        torch.einsum("hi,wj,bcij->bchw", tents(h, s), tents(w, s), cbr(block, cells(x, s)))
        for block, s in zip(layer.branches, scales, strict=True)
    ]


@pytest.mark.parametrize("shape", [(12, 12), (9, 7), (5, 4)], ids=str)
@pytest.mark.parametrize("scales", [(1, 2, 3, 6), (2, 5)], ids=str)
def test_formula(shape, scales):
    layer = randomise(PSP(8, scales=scales))
    x = torch.randn(2, 8, *shape, dtype=torch.float64)
    assert_close(layer(x), x + torch.cat(pyramid(layer, x, scales), 1))


def test_bottleneck_matches_the_papers_head():
    layer = randomise(PSP(8, join="bottleneck"))
    x = torch.randn(2, 8, 9, 7, dtype=torch.float64)
    y = F.conv2d(torch.cat([x, *pyramid(layer, x, (1, 2, 3, 6))], 1), layer.bottleneck[0].weight, padding=1)
    assert_close(layer(x), norm(layer.bottleneck[1], y).relu())


def test_parameter_counts():
    assert count(PSP(512)) == 4 * (512 * 128 + 2 * 128) == 263_168
    assert count(PSP(512, join="bottleneck")) == 263_168 + 9 * 1024 * 512 + 2 * 512


@pytest.mark.parametrize("join", ["residual", "bottleneck"])
def test_a_batch_of_one_trains_though_the_coarsest_grid_is_one_value(join):
    layer = PSP(8, join=join).train()
    layer(torch.randn(1, 8, 5, 5)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PSP(6), "4 scales do not divide the channels 6; choose a multiple of 4"),
        (lambda: PSP(8, scales=()), "at least one size"),
        (lambda: PSP(8, scales=(1, -2)), "each of the scales must be"),
        (lambda: PSP(8, join="add"), "no join 'add'.*known: bottleneck, residual"),
    ],
)
def test_messages(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("hw", [(9, 13), (1, 7), (32, 32)], ids=str)
def test_grid_upsampling_matches_bilinear_interpolation(size, hw):
    grid, image = torch.randn(2, 3, size, size, dtype=torch.float64), torch.empty(2, 3, *hw)
    expected = F.interpolate(grid, size=hw, mode="bilinear", align_corners=True)
    assert_close(resize_from_grid(grid, image.shape[2:]), expected)


def test_cached_grids_can_be_trained_with_after_inference_mode():
    x = torch.randn(1, 4, 10, 11)
    with torch.inference_mode():
        first = pool_to_grid(x, 3)
    x.requires_grad_()
    again = pool_to_grid(x, 3)
    again.sum().backward()
    assert torch.equal(again.detach(), first)
    assert_close(again, F.adaptive_avg_pool2d(x, 3))


def test_grid_means_in_bfloat16_are_as_accurate_as_torch():
    x = (torch.randn(1, 4, 64, 61) + 10).bfloat16()
    exact = F.adaptive_avg_pool2d(x.double(), 6)
    ours, theirs = ((y.double() - exact).abs().max() for y in (pool_to_grid(x, 6), F.adaptive_avg_pool2d(x, 6)))
    assert ours < 3 * theirs


@pytest.mark.parametrize("shape", [(12, 12), (13, 9), (5, 7), (1, 3), (65, 33)], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7])
def test_grid_pooling_matches_adaptive_pooling(shape, size):
    x = torch.randn(2, 3, *shape, dtype=torch.float64, requires_grad=True)
    ours, theirs = pool_to_grid(x, size), F.adaptive_avg_pool2d(x, size)
    assert_close(ours, theirs)
    g = torch.randn_like(ours)
    assert_close(torch.autograd.grad(ours, x, g)[0], torch.autograd.grad(theirs, x, g)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_pooling_keeps_dtype_and_constants(dtype):
    y = pool_to_grid(torch.full((1, 2, 13, 9), 3.0, dtype=dtype), 6)
    assert y.dtype == dtype
    assert_close(y, torch.full((1, 2, 6, 6), 3.0))


def test_an_exported_program_pools_every_size():
    class Pool(torch.nn.Module):
        def forward(self, x):
            return pool_to_grid(x, 3)

    h, w = (torch.export.Dim(name, min=2, max=64) for name in "hw")
    program = torch.export.export(Pool(), (torch.randn(1, 2, 12, 10),), dynamic_shapes={"x": {2: h, 3: w}})
    for shape in ((15, 10), (7, 8), (12, 12)):
        x = torch.randn(1, 2, *shape)
        assert_close(program.module()(x), F.adaptive_avg_pool2d(x, 3))
