"""The squeeze-and-attention unit against its formula, at even and odd sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close

from hamburger.contexts.sanet import SANet
from hamburger.errors import OptionError


def build(**options):
    layer = SANet(5, **options)
    for tensor in [*layer.parameters(), *(b for n, b in layer.named_buffers() if "running" in n)]:
        tensor.data = torch.rand_like(tensor) + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor) * 0.3
    return layer.eval().double()


def branch(blocks, x):
    for conv, norm, _ in blocks:
        x = F.conv2d(F.pad(x, (1, 1, 1, 1)), conv.weight, conv.bias)
        x = F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias))
    return x


def halve(x):
    """Mean of each 2 x 2 block, of what is left of it at the edge."""
    rows = torch.stack([x[:, :, i : i + 2].mean(2) for i in range(0, x.shape[2], 2)], 2)
    return torch.stack([rows[:, :, :, j : j + 2].mean(3) for j in range(0, x.shape[3], 2)], 3)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("upsample", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(6, 8), (7, 9), (1, 5), (1, 1)])
def test_unit_matches_its_formula(size, upsample, squash):
    layer = build(upsample=upsample, squash=squash)
    x = torch.randn(2, 5, *size, dtype=torch.float64)
    small = branch(layer.attention, halve(x))
    assert small.shape[2:] == tuple((s + 1) // 2 for s in size)
    if upsample == "bilinear":
        attention = F.interpolate(small, size, mode="bilinear", align_corners=True)
    else:
        rows, columns = ([i * s // t for i in range(t)] for s, t in zip(small.shape[2:], size, strict=True))
        attention = small[:, :, rows][..., columns]
    attention = 1 / (1 + torch.exp(-attention)) if squash else attention
    expected = attention * branch(layer.main, x) + attention
    assert expected.norm() > 0
    assert_close(layer(x), expected)


def test_the_attention_is_not_fully_squeezed():
    layer = build()
    x = torch.randn(1, 5, 8, 8, dtype=torch.float64)
    layer.main[1][1].weight.data.zero_()
    layer.main[1][1].bias.data.zero_()
    out = layer(x)  # main is 0: what is left is the attention itself
    assert (out.amax(dim=(2, 3)) > out.amin(dim=(2, 3))).any()
    layer.attention[1][1].weight.data.zero_()
    layer.attention[1][1].bias.data.zero_()
    assert layer(x).abs().max() == 0  # no attention, no output: there is no skip


def test_parameters():
    block = 9 * 512 * 512 + 512 + 2 * 512
    assert sum(p.numel() for p in SANet(512).parameters()) == 4 * block == 9_443_328


def test_messages():
    with pytest.raises(OptionError, match="did you mean 'nearest'"):
        SANet(8, upsample="nearset")
    with pytest.raises(OptionError, match="SANet: channels must be a whole number"):
        SANet(0)
