"""Self-attention against explicit loops over pairs of positions."""

from __future__ import annotations

import math

import pytest
import torch
from tolerances import assert_close

from hamburger.contexts.sa import SelfAttention


def by_hand(layer, x):
    """One position and one head at a time."""
    wq, wk, wv, wo = (m.weight[:, :, 0, 0] for m in (layer.queries, layer.keys, layer.values, layer.out))
    out = x.clone()
    inner = wq.shape[0]
    d = inner // layer.heads
    for image in range(x.shape[0]):
        z = x[image].reshape(x.shape[1], -1)
        mixed = torch.zeros(inner, z.shape[1], dtype=x.dtype)
        for i in range(z.shape[1]):
            for head in range(layer.heads):
                part = slice(head * d, head * d + d)
                weights = torch.exp((wk[part] @ z).T @ (wq[part] @ z[:, i]) / math.sqrt(d))
                mixed[part, i] = (wv[part] @ z) @ (weights / weights.sum())
        out[image] += (wo @ mixed).reshape(x.shape[1:])
    return out


def test_parameters_match_table_3():
    assert sum(p.numel() for p in SelfAttention(512).parameters()) == 4 * 512 * 512 == 1_048_576
    assert sum(p.numel() for p in SelfAttention(512, heads=8, inner=64).parameters()) == 4 * 512 * 64


@pytest.mark.parametrize("materialise", [False, True])
@pytest.mark.parametrize(("heads", "inner"), [(1, None), (2, None), (3, 6)])
def test_formula(heads, inner, materialise):
    layer = SelfAttention(8, heads=heads, inner=inner, materialise=materialise).double()
    x = 2 * torch.randn(2, 8, 3, 5, dtype=torch.float64)
    assert_close(layer(x), by_hand(layer, x))


@pytest.mark.parametrize("heads", [1, 4])
def test_materialised_and_fused_have_the_same_values_and_gradients(heads):
    fused = SelfAttention(16, heads=heads)
    held = SelfAttention(16, heads=heads, materialise=True)
    held.load_state_dict(fused.state_dict())
    a, b = (torch.randn(2, 16, 7, 9, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    ours, theirs = fused(a), held(b)
    assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    assert_close(a.grad, b.grad)
    for p, q in zip(fused.parameters(), held.parameters(), strict=True):
        assert_close(p.grad, q.grad, slack=5)


def test_rows_sum_to_one():
    """Identity values and output: a constant map is doubled for any weights of the mean."""
    layer = SelfAttention(6).double()
    for part in (layer.values, layer.out):
        part.weight.data = torch.eye(6, dtype=torch.float64)[:, :, None, None]
    x = torch.randn(1, 6, 1, 1, dtype=torch.float64).expand(2, 6, 4, 5)
    assert_close(layer(x), 2 * x)
    rough = torch.randn(2, 6, 4, 5, dtype=torch.float64)
    mean = (layer(rough) - rough).flatten(2)
    low, high = rough.flatten(2).aminmax(dim=2, keepdim=True)
    assert ((mean >= low) & (mean <= high)).all()


def test_permuting_pixels_permutes_the_output():
    layer = SelfAttention(8, heads=2).double()
    x = torch.randn(1, 8, 1, 20, dtype=torch.float64)
    order = torch.randperm(20)
    assert_close(layer(x[..., order]), layer(x)[..., order])


def test_heads_are_contiguous_for_fused_kernels():
    layer = SelfAttention(16, heads=2)
    for x in (torch.randn(2, 16, 4, 5), torch.randn(2, 16, 4, 5).contiguous(memory_format=torch.channels_last)):
        part = layer.split(x)
        assert part.shape == (2, 2, 20, 8)
        assert part.stride(-1) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "sa: 3 heads do not divide the inner width 8; choose heads or inner"),
        ({"heads": 0}, "sa: heads must be a whole number of at least 1"),
        ({"inner": 0}, "sa: inner must be a whole number of at least 1"),
    ],
)
def test_messages(options, message):
    with pytest.raises(ValueError, match=message):
        SelfAttention(8, **options)
