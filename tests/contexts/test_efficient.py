"""Efficient attention against the n x n matrix that it never forms."""

from __future__ import annotations

import math

import pytest
import torch
from tolerances import assert_close

from hamburger.contexts.efficient import NORMS, EfficientAttention
from hamburger.contexts.nonlocal_block import NonLocal


def heads_of(layer, x):
    """Queries, keys and values of each head, n rows long."""
    parts = []
    for conv in (layer.queries, layer.keys, layer.values):
        y = torch.einsum("oc,bcn->bno", conv.weight[:, :, 0, 0], x.flatten(2)) + conv.bias
        parts.append(y.chunk(layer.heads, dim=2))
    return list(zip(*parts, strict=True))


def implied(layer, q, k):
    """The n x n matrix."""
    if layer.norm == "softmax":
        q = q.exp() / q.exp().sum(2, keepdim=True)
        k = k.exp() / k.exp().sum(1, keepdim=True)
        return q @ k.mT
    return q @ k.mT / (math.sqrt(q.shape[2]) if layer.norm == "scale_sqrt_k" else q.shape[1])


def quadratic(layer, x):
    mixed = torch.cat([implied(layer, q, k) @ v for q, k, v in heads_of(layer, x)], dim=2)
    y = mixed @ layer.out.weight[:, :, 0, 0].T + layer.out.bias
    return x + y.mT.reshape(x.shape)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "options", [{}, {"heads": 4}, {"heads": 2, "key_channels": 4, "value_channels": 6}, {"key_channels": 3}], ids=str
)
def test_efficient_attention_matches_its_quadratic_form(norm, options):
    layer = EfficientAttention(8, norm=norm, **options).double()
    x = 2 * torch.randn(2, 8, 5, 7, dtype=torch.float64)
    assert_close(layer(x), quadratic(layer, x))
    single = EfficientAttention(8, norm=norm, **options)
    assert_close(single(x.float()), quadratic(single, x.float()))


@pytest.mark.parametrize("heads", [1, 2])
def test_the_softmax_matrix_is_a_mean_but_not_softmax_attention(heads):
    layer = EfficientAttention(8, heads=heads).double()
    for q, k, _ in heads_of(layer, 3 * torch.randn(2, 8, 4, 5, dtype=torch.float64)):
        matrix = implied(layer, q, k)
        assert (matrix >= 0).all()
        assert_close(matrix.sum(2), torch.ones(2, 20, dtype=torch.float64))
        assert (matrix - (q @ k.mT).softmax(2)).abs().max() > 0.01


def test_softmax_axes():
    """Keys: a constant over pixels changes nothing. Queries: a constant over a head's channels changes nothing."""
    layer = EfficientAttention(8, heads=2).double()
    x = torch.randn(2, 8, 4, 5, dtype=torch.float64)
    before = layer(x)
    layer.keys.bias.data += torch.randn(8, dtype=torch.float64)
    assert_close(layer(x), before)
    layer.queries.bias.data += torch.tensor([1.0] * 4 + [-2.0] * 4)
    assert_close(layer(x), before)
    layer.queries.bias.data[0] += 1.0
    assert (layer(x) - before).abs().max() > 1e-4


def test_scale_norm_matches_the_dot_product_block():
    ours = EfficientAttention(8, norm="scale_n", key_channels=4, value_channels=4).double()
    theirs = NonLocal(8, mode="dot_product", norm="none").double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 8, 4, 5, dtype=torch.float64)
    assert_close(ours(x), theirs(x))


def test_norms_differ_only_by_a_scalar():
    root, mean = (EfficientAttention(8, norm=norm, heads=2).double() for norm in ("scale_sqrt_k", "scale_n"))
    for layer in (root, mean):
        layer.out.bias.data.zero_()
    mean.load_state_dict(root.state_dict())
    x = torch.randn(1, 8, 4, 5, dtype=torch.float64)
    assert_close((root(x) - x) * math.sqrt(4), (mean(x) - x) * 20)


@pytest.mark.parametrize("norm", NORMS)
def test_no_matrix_is_n_by_n(norm):
    """At n = 1600 a pair matrix would have 2.56 million elements; nothing kept for the gradient passes 16 n."""
    kept = []
    layer, x = EfficientAttention(16, norm=norm, heads=2), torch.randn(1, 16, 40, 40)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        layer(x)
    assert max(kept) == 16 * 1600


def test_parameter_counts():
    def count(**options):
        return sum(p.numel() for p in EfficientAttention(512, **options).parameters())

    assert count() == count(heads=8) == 4 * (512 * 512 + 512) == 1_050_624
    narrow = count(key_channels=64, value_channels=128)
    assert narrow == 2 * (512 * 64 + 64) + (512 * 128 + 128) + (128 * 512 + 512)


@pytest.mark.parametrize("norm", ["scale_n", "softmax"])
def test_float16_keeps_sums_over_many_pixels(norm):
    layer = EfficientAttention(8, norm=norm)
    x = 5 + torch.randn(1, 8, 128, 128)  # a common offset: products add up instead of cancelling
    for part in (layer.keys, layer.values):
        part.weight.data.abs_()
    with torch.autocast("cpu", dtype=torch.float16):
        out = layer(x)
    assert_close(out.half(), layer(x), slack=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "efficient: 3 heads do not divide key_channels=8; choose either to fit"),
        ({"heads": 4, "value_channels": 6}, "4 heads do not divide value_channels=6"),
        ({"norm": "sofmax"}, "efficient: no norm 'sofmax'; did you mean 'softmax'"),
        ({"key_channels": 0}, "key_channels must be a whole number of at least 1"),
    ],
)
def test_messages(options, message):
    with pytest.raises(ValueError, match=message):
        EfficientAttention(8, **options)
