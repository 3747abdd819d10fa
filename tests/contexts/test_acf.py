"""Co-occurrent features against dense matrices, head by head and mixture by mixture."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from reference_layers import count, norm, randomise
from tolerances import assert_close

from hamburger.contexts.acf import ACF


def pool(x):
    """The mean of the up to nine pixels around every second one, those outside left out."""
    h, w = x.shape[2:]
    rows = [
        [x[:, :, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2].mean((2, 3)) for j in range(0, w, 2)]
        for i in range(0, h, 2)
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def linear(layer, x):
    y = torch.einsum("oc,bcn->bon", layer.weight[:, :, 0, 0], x.flatten(2))
    return y if layer.bias is None else y + layer.bias[:, None]


def dense(layer, x, heads, mixtures, pooled):
    b, c, h, w = x.shape
    small = pool(x) if pooled else x
    q, k, v = linear(layer.query_key, x), linear(layer.query_key, small), linear(layer.value, small)
    d = c // heads
    d_k = d * mixtures
    y = torch.zeros(b, c, h * w, dtype=x.dtype)
    for image in range(b):
        for head in range(heads):
            mine = slice(head * d_k, (head + 1) * d_k)
            share = torch.ones(1, dtype=x.dtype)
            if mixtures > 1:
                share = (layer.mixing @ q[image, mine].mean(1)).softmax(0)
            attention = 0
            for j in range(mixtures):
                part = slice(head * d_k + j * d, head * d_k + (j + 1) * d)
                scores = (q[image, part].T @ k[image, part] / math.sqrt(d_k)).exp()
                attention = attention + share[j] * scores / scores.sum(1, keepdim=True)
            assert_close(attention.sum(1), torch.ones(h * w))  # every row is a distribution
            values = slice(head * d, (head + 1) * d)
            y[image, values] = v[image, values] @ attention.T
    return x + norm(layer.norm, linear(layer.out, y).unflatten(2, (h, w)))


@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (1, 3)], ids=str)
@pytest.mark.parametrize("heads, mixtures", [(1, 1), (3, 1), (1, 4), (2, 3)])
@pytest.mark.parametrize("pooled", [True, False])
def test_formula(heads, mixtures, pooled, shape):
    layer = randomise(ACF(6, heads=heads, mixtures=mixtures, pool=pooled))
    x = torch.randn(2, 6, *shape, dtype=torch.float64)
    assert_close(layer(x), dense(layer, x, heads, mixtures, pooled))


def test_odd_sizes_keep_every_pooled_position():
    # 65 x 65 pools to 33 x 33 = 1089 positions, not to 65 * 65 // 4 = 1056
    layer = randomise(ACF(2))
    x = torch.randn(1, 2, 65, 65, dtype=torch.float64)
    moved = x.clone()
    moved[:, :, -1, -1] += 1.0  # seen by the last pooled positions alone
    assert (layer(moved) - layer(x))[:, :, 0, 0].abs().min() > 0


def test_ffn_transform_matches_its_formula():
    layer = randomise(ACF(6, transform="ffn", heads=2))
    x = torch.randn(2, 6, 5, 4, dtype=torch.float64)
    block, last = layer.query_key[0], layer.query_key[1]

    def transform(z):
        return last(norm(block[1], F.conv2d(z, block[0].weight, padding=1)).relu()).flatten(2).unflatten(1, (2, 3))

    small = pool(x)
    attention = (transform(x).mT @ transform(small) / math.sqrt(3)).softmax(-1)
    y = layer.value(small).flatten(2).unflatten(1, (2, 3)) @ attention.mT
    assert_close(layer(x), x + norm(layer.norm, layer.out(y.flatten(1, 2).unflatten(2, (5, 4)))))


def test_parameter_counts():
    assert count(ACF(512)) == 788_480
    assert round(788_480 / 2**20, 2) == 0.75  # Table 3
    assert count(ACF(512, heads=8)) == 788_480
    four = count(ACF(512, mixtures=4))
    assert four == 4 * (512 * 512 + 512) + (512 * 512 + 512) + 512 * 512 + 1024 + 4 * 2048
    assert round(four / 2**20, 2) == 1.51


def test_permuting_positions_permutes_the_output_only_without_pooling():
    x, order = torch.randn(1, 6, 1, 30), torch.randperm(30)
    flat = ACF(6, pool=False, heads=2, mixtures=2).eval()
    assert_close(flat(x[..., order]), flat(x)[..., order])
    pooled = ACF(6, heads=2, mixtures=2).eval()
    assert not torch.allclose(pooled(x[..., order]), pooled(x)[..., order], atol=1e-3)


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    layer, x = ACF(8, dropout=0.5), torch.randn(2, 8, 6, 6)
    assert torch.equal(layer.eval()(x), layer.eval()(x))
    assert not torch.equal(layer.train()(x), layer.train()(x))
    never = ACF(8, dropout=0.0).train()
    assert torch.equal(never(x), never(x))


def test_initialisation():
    layer = ACF(128, heads=2, mixtures=4)
    assert abs(layer.query_key.weight.std() - math.sqrt(2 / (128 + 256))) < 2e-3
    assert abs(layer.value.weight.std() - math.sqrt(2 / (128 + 64))) < 2e-3
    assert 0.45 < layer.mixing.abs().max() <= 0.5
    assert abs(ACF(64, transform="ffn").query_key[1].weight.std() - 1 / 8) < 5e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "3 heads do not divide the channels 8; choose a divisor"),
        ({"heads": 0}, "heads must be a whole number of at least 1"),
        ({"mixtures": 0}, "mixtures must be"),
        ({"transform": "cnov"}, "did you mean 'conv'"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1"),
    ],
)
def test_messages(options, message):
    with pytest.raises(ValueError, match=message):
        ACF(8, **options)
