"""External attention, pixel by pixel, and its two memories."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close

from hamburger.contexts.external import ExternalAttention


def randomised(channels, **options):
    layer = ExternalAttention(channels, **options).double().eval()
    for tensor in (*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())):
        tensor.data = torch.rand_like(tensor) * 0.5 + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor)
    return layer


def weight(conv):
    return conv.weight[:, :, 0, 0]


@pytest.mark.parametrize("norm", ["double", "softmax"])
def test_formula(norm):
    layer = randomised(6, slots=4, norm=norm)
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    out = []
    for image in x:
        z = image.flatten(1)
        scores = (weight(layer.keys) @ (weight(layer.lower) @ z + layer.lower.bias[:, None])).exp()
        mixed = []
        for i in range(15):
            if norm == "double":
                weights = torch.stack([scores[slot, i] / scores[slot].sum() for slot in range(4)])
            else:
                weights = scores[:, i]
            mixed.append(weight(layer.values) @ (weights / weights.abs().sum()))
        y = (weight(layer.upper[0]) @ torch.stack(mixed, 1))[None]
        n = layer.upper[1]
        y = F.batch_norm(y, n.running_mean, n.running_var, n.weight, n.bias, eps=n.eps)[0]
        out.append((z + y).clamp_min(0).view_as(image))
    assert_close(layer(x), torch.stack(out), slack=1e4)  # 1e-9 is added to the sum


def test_parameter_counts():
    def count(**options):
        return sum(p.numel() for p in ExternalAttention(512, **options).parameters())

    breads = (512 * 512 + 512) + (512 * 512 + 2 * 512)
    assert count() == breads + 2 * 512 * 64 == 591_360
    assert count(slots=8) == breads + 2 * 512 * 8


def test_memories_start_equal_and_share_no_storage():
    layer = ExternalAttention(64, slots=16)
    assert torch.equal(weight(layer.keys), weight(layer.values).T)
    assert abs(layer.keys.weight.std() / math.sqrt(2 / 64) - 1) < 0.1
    before = layer.values.weight.clone()
    with torch.no_grad():
        layer.keys.weight.add_(1.0)
    assert torch.equal(layer.values.weight, before)  # no storage in common


def test_the_first_normalisation_is_over_pixels_the_second_over_slots():
    layer = ExternalAttention(8, slots=4)
    scores = torch.randn(2, 4, 30, dtype=torch.float64)
    weights = layer.normalise(scores)
    assert_close(weights.sum(1), torch.ones(2, 30, dtype=torch.float64), slack=1e4)
    # a constant added to a slot vanishes in the softmax over pixels; in the other order that of a pixel would
    shifted = layer.normalise(scores + torch.randn(1, 4, 1, dtype=torch.float64))
    assert_close(shifted, weights)
    other = layer.normalise(scores + torch.tensor([0.0, 1.0]).repeat(15))
    assert (other - weights).abs().max() > 1e-3


def test_only_the_double_norm_lets_positions_see_each_other():
    for norm, sees in (("double", True), ("softmax", False)):
        layer = randomised(8, slots=4, norm=norm)
        x = torch.randn(1, 8, 4, 4, dtype=torch.float64)
        moved = x.clone()
        moved[..., 0, 0] += 2.0
        change = (layer(moved) - layer(x))[..., 1:, :].abs().max()
        assert bool(change > 1e-6) == sees


def test_half_precision_keeps_small_weights():
    layer = ExternalAttention(8, slots=4).eval()
    scores = torch.randn(1, 4, 300_000)
    weights = layer.normalise(scores.half())
    assert weights.dtype == torch.float16
    assert_close(weights, layer.normalise(scores.half().float()))


def test_the_output_is_rectified():
    layer = randomised(8)
    assert layer(torch.randn(2, 8, 5, 5, dtype=torch.float64)).min() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "external: slots must be a whole number of at least 1"),
        ({"norm": "duoble"}, "external: no norm 'duoble'; did you mean 'double'"),
    ],
)
def test_messages(options, message):
    with pytest.raises(ValueError, match=message):
        ExternalAttention(8, **options)
