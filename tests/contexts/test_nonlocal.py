"""The non-local block's four pairwise functions against dense matrices, pair by pair."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close

from hamburger.contexts.nonlocal_block import MODES, NonLocal


def opened(channels, **options):
    """Away from its neutral start: every parameter and running statistic random."""
    layer = NonLocal(channels, **options).double().eval()
    for tensor in (*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())):
        tensor.data = torch.rand_like(tensor) * 0.5 + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor) * 0.4
    return layer


def linear(conv, x):
    y = torch.einsum("oc,bchw->bohw", conv.weight[:, :, 0, 0], x)
    return y if conv.bias is None else y + conv.bias[:, None, None]


def pooled(x):
    """The maximum of each 2 x 2 block; blocks cut off by the border keep what they have."""
    h, w = x.shape[2:]
    blocks = [[x[:, :, i : i + 2, j : j + 2].amax((2, 3)) for j in range(0, w, 2)] for i in range(0, h, 2)]
    return torch.stack([torch.stack(row, 2) for row in blocks], 2)


def by_hand(layer, x, mode, *, scaled=True, pool=False):
    q, k, v = x, x, linear(layer.values, x)
    if mode != "gaussian":
        q, k = linear(layer.queries, x), linear(layer.keys, x)
    if pool:
        k, v = pooled(k), pooled(v)
    q, k, v = q.flatten(2), k.flatten(2), v.flatten(2)
    b, d, n = q.shape
    m = k.shape[2]
    weights = torch.empty(b, n, m, dtype=x.dtype)
    for i in range(n):
        for j in range(m):
            dot = (q[:, :, i] * k[:, :, j]).sum(1)
            if mode == "embedded_gaussian":
                weights[:, i, j] = torch.exp(dot / math.sqrt(d) if scaled else dot)
            elif mode == "gaussian":
                weights[:, i, j] = torch.exp(dot)
            elif mode == "dot_product":
                weights[:, i, j] = dot
            else:
                pair = torch.cat([q[:, :, i], k[:, :, j]], 1)
                w = torch.cat([layer.query_score.weight.flatten(), layer.key_score.weight.flatten()])
                weights[:, i, j] = F.relu(pair @ w)
    weights = weights / (weights.sum(2, keepdim=True) if "gaussian" in mode else m)
    y = linear(layer.out, torch.einsum("bdj,bij->bdi", v, weights).reshape(b, -1, *x.shape[2:]))
    if hasattr(layer.norm, "running_mean"):
        n_ = layer.norm
        y = F.batch_norm(y, n_.running_mean, n_.running_var, n_.weight, n_.bias, eps=n_.eps)
    return x + y


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_formula(mode, pool):
    layer = opened(6, mode=mode, pool=pool)
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    assert_close(layer(x), by_hand(layer, x, mode, pool=pool))


@pytest.mark.parametrize("mode", MODES)
def test_without_a_norm(mode):
    layer = opened(6, mode=mode, norm="none", inner=4)
    x = torch.randn(1, 6, 4, 3, dtype=torch.float64)
    assert_close(layer(x), by_hand(layer, x, mode))


def test_scale_is_optional():
    layer = opened(6, scale=False)
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    assert_close(layer(x), by_hand(layer, x, "embedded_gaussian", scaled=False))
    with_scale = opened(6, scale=True)
    with_scale.load_state_dict(layer.state_dict())
    assert (with_scale(x) - layer(x)).abs().max() > 1e-3


def test_parameter_counts():
    def count(**options):
        return sum(p.numel() for p in NonLocal(512, **options).parameters())

    project, back, norm = 512 * 256 + 256, 256 * 512, 2 * 512
    assert count() == 3 * project + back + norm == 526_080
    assert count(mode="dot_product") == count(pool=True) == count()
    assert count(mode="gaussian") == project + back + norm
    assert count(mode="concatenation") == count() + 2 * 256
    assert count(norm="none") == 3 * project + back + 512


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("mode", MODES)
def test_nonlocal_starts_as_the_identity_and_learns(mode, norm):
    layer = NonLocal(8, mode=mode, norm=norm)
    x = torch.randn(2, 8, 5, 5)
    assert torch.equal(layer(x), x)
    layer(x).square().sum().backward()
    gate = layer.norm.weight if norm == "batch" else layer.out.weight
    assert gate.grad.norm() > 0
    assert not layer.values.weight.grad.any()  # behind the zero gate, at the first step
    with torch.no_grad():
        gate.fill_(1.0)
    assert (layer(x) - x).abs().max() > 1e-5


def test_projections_start_small():
    layer = NonLocal(256)
    for part in (layer.queries, layer.keys, layer.values):
        assert 0.009 < part.weight.std() < 0.011
        assert not part.bias.any()


def test_dot_product_divides_by_the_number_of_keys_it_sees():
    """On a constant map the output must not depend on the number of positions, pooled or not."""
    for pool in (False, True):
        layer = opened(6, mode="dot_product", pool=pool)
        x = torch.randn(1, 6, 1, 1, dtype=torch.float64)
        assert_close(layer(x.expand(1, 6, 7, 5)), layer(x).expand(1, 6, 7, 5))


def test_concatenation_mode_never_builds_all_pairs():
    """Two scores a position, not 2d channels for each of n x n pairs."""
    seen = []
    layer = opened(8, mode="concatenation")
    layer.query_score.register_forward_hook(lambda module, args, out: seen.append((args[0].numel(), out.numel())))
    layer(torch.randn(1, 8, 5, 6, dtype=torch.float64))
    assert seen == [(4 * 30, 30)]


def test_maps_of_one_row_can_be_pooled():
    layer = opened(6, pool=True)
    x = torch.randn(1, 6, 1, 5, dtype=torch.float64)
    assert_close(layer(x), by_hand(layer, x, "embedded_gaussian", pool=True))


@pytest.mark.parametrize(
    ("channels", "options", "message"),
    [
        (8, {"mode": "gausian"}, "nonlocal: no mode 'gausian'; did you mean 'gaussian'"),
        (8, {"norm": "layer"}, "nonlocal: no norm 'layer'"),
        (
            8,
            {"mode": "dot_product", "scale": True},
            "scale belongs to mode='embedded_gaussian', got mode='dot_product'",
        ),
        (1, {"inner": 0}, "inner must be a whole number of at least 1, got 0"),
        (8, {"inner": 0}, "inner must be a whole number of at least 1"),
    ],
)
def test_messages(channels, options, message):
    with pytest.raises(ValueError, match=message):
        NonLocal(channels, **options)
