"""Dynamic filters, tap by tap."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference_layers import cbr, count, norm, randomise
from tolerances import assert_close

from hamburger.contexts.dm import DM, filter_depthwise


def filtered(u, kernel):
    """Return every output pixel as an explicit sum over the pixels inside the image."""
    (h, w), k = u.shape[2:], kernel.shape[-1]
    y = torch.zeros_like(u)
    for i in range(h):
        for j in range(w):
            for di in range(k):
                for dj in range(k):
                    row, column = i + di - k // 2, j + dj - k // 2
                    if 0 <= row < h and 0 <= column < w:
                        y[:, :, i, j] += kernel[:, :, di, dj] * u[:, :, row, column]
    return y


def branch(block, x, k):
    kernel = torch.einsum("oc,bchw->bohw", block.kernel.weight[:, :, 0, 0], F.adaptive_avg_pool2d(x, k))
    kernel = kernel + block.kernel.bias[:, None, None]
    y = norm(block.norm, filtered(cbr(block.reduce, x), kernel)).relu()
    return cbr(block.fusion, y) if isinstance(block.fusion, torch.nn.Sequential) else y


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("sizes", [(1, 3, 5, 7), (2, 4)], ids=str)
def test_formula(sizes, fusion):
    layer = randomise(DM(4, sizes=sizes, fusion=fusion))
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    o = [branch(block, x, k) for block, k in zip(layer.filters, sizes, strict=True)]
    assert_close(layer(x), x + sum(o) / len(o))


def test_narrow_filters_are_folded_by_channel_groups():
    layer = randomise(DM(4, width=2))
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    o = [branch(block, x, k) for block, k in zip(layer.filters, (1, 3, 5, 7), strict=True)]
    assert_close(layer(x), x + torch.cat([o[0] + o[2], o[1] + o[3]], 1) / 2)


def test_bottleneck_matches_the_papers_head():
    layer = randomise(DM(4, width=3, sizes=(1, 3), join="bottleneck"))
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    o = [branch(block, x, k) for block, k in zip(layer.filters, (1, 3), strict=True)]
    y = F.conv2d(torch.cat([x, *o], 1), layer.bottleneck[0].weight, padding=1)
    assert_close(layer(x), norm(layer.bottleneck[1], y).relu())


@pytest.mark.parametrize("size", range(1, 8))
def test_exported_depthwise_convolution_matches(size):
    class Filter(torch.nn.Module):
        def forward(self, u, kernel):
            return filter_depthwise(u, kernel)

    u, kernel = torch.randn(2, 3, 5, 6, dtype=torch.float64), torch.randn(2, 3, size, size, dtype=torch.float64)
    assert_close(filter_depthwise(u, kernel), filtered(u, kernel))
    if size in (1, 4, 7):
        axis = torch.export.Dim("b", min=1, max=8)
        program = torch.export.export(Filter(), (u, kernel), dynamic_shapes={"u": {0: axis}, "kernel": {0: axis}})
        for b in (1, 3):
            u, kernel = torch.randn(b, 3, 5, 6, dtype=torch.float64), torch.randn(b, 3, size, size, dtype=torch.float64)
            assert_close(program.module()(u, kernel), filtered(u, kernel))


def test_even_kernel_is_padded_left_and_top():
    u = torch.zeros(1, 1, 5, 5)
    u[0, 0, 2, 2] = 1.0
    y = filter_depthwise(u, torch.ones(1, 1, 2, 2))
    assert y.nonzero()[:, 2:].tolist() == [[2, 2], [2, 3], [3, 2], [3, 3]]  # each sees itself and what is before it


def test_kernels_depend_on_the_image_and_are_not_normalised():
    layer = randomise(DM(4, sizes=(3,), fusion=False))
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    assert_close(torch.cat([layer(x[:1]), layer(x[1:])]), layer(x))
    block = layer.filters[0]
    block.norm.running_mean.zero_()
    block.norm.bias.data.zero_()
    before = layer(x) - x
    for parameter in block.kernel.parameters():
        parameter.data *= 3
    assert_close(layer(x) - x, 3 * before)


def test_parameter_counts():
    assert count(DM(512)) == 3_160_064
    # Table 3 counts weights and the bias of the filters, and no batch norm
    bare = sum(p.numel() for n, p in DM(512).named_parameters() if p.dim() > 1 or ".kernel." in n)
    assert bare == 3_147_776
    assert round(bare / 2**20, 2) == 3.00
    assert count(DM(512, fusion=False)) == 3_160_064 - 4 * (512 * 512 + 1024)
    assert count(DM(512, join="bottleneck")) == 3_160_064 + 9 * 5 * 512 * 512 + 1024


def test_maps_may_be_smaller_than_the_filters():
    layer = randomise(DM(4))
    x = torch.randn(1, 4, 3, 2, dtype=torch.float64)
    o = [branch(block, x, k) for block, k in zip(layer.filters, (1, 3, 5, 7), strict=True)]
    assert_close(layer(x), x + sum(o) / 4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DM(8, width=3), "4 branches of width 3 do not fold onto 8 channels; .*join='bottleneck'"),
        (lambda: DM(8, sizes=()), "at least one size"),
        (lambda: DM(8, sizes=(0,)), "each of the sizes must be a whole number of at least 1"),
        (lambda: DM(8, join="botleneck"), "did you mean 'bottleneck'"),
        (lambda: DM(0), "channels must be"),
    ],
)
def test_messages(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(("width", "channels"), [(8, 8), (4, 8), (16, 8), (6, 8)])
def test_folding_is_concatenation_cut_and_averaged(width, channels):
    from hamburger.contexts.psp import fold_branches

    branches = [torch.randn(2, width, 3, 5, dtype=torch.float64) for _ in range(4)]
    whole = torch.cat(branches, dim=1)
    expected = sum(whole.split(channels, dim=1)) / (4 * width // channels)
    assert_close(fold_branches(branches, channels), expected)
