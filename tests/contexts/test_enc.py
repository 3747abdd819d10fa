"""Context encoding against the residuals written out, n x k x c of them."""

from __future__ import annotations

import pytest
import torch
from reference_layers import cbr, count, randomise
from tolerances import assert_close, relative_error

from hamburger.contexts.enc import Enc


def code_by_residuals(layer, x):
    f = cbr(layer.lower, x).flatten(2)
    residuals = f.mT[:, :, None, :] - layer.codewords  # b n k c
    scores = (layer.smoothing * residuals.square().sum(-1)).exp()
    weights = scores / scores.sum(2, keepdim=True)
    e = (weights[..., None] * residuals).sum(1)  # b k c
    k = layer.norm
    e = (e - k.running_mean[:, None]) / (k.running_var[:, None] + k.eps).sqrt() * k.weight[:, None] + k.bias[:, None]
    return e.clamp_min(0).mean(1)


def build(channels=6, **options):
    layer = randomise(Enc(channels, codewords=5, **options))
    layer.smoothing.data.neg_()
    return layer


def test_formula():
    layer = build(num_classes=3)
    x = torch.randn(2, 6, 4, 5, dtype=torch.float64)
    e = code_by_residuals(layer, x)
    gamma = 1 / (1 + (-(e @ layer.gate.weight.T + layer.gate.bias)).exp())
    out, logits = layer(x, return_se=True)
    assert_close(layer.encode(x), e)
    assert_close(out, (x * (1 + gamma[:, :, None, None])).clamp_min(0))
    assert_close(logits, e @ layer.presence.weight.T + layer.presence.bias)
    assert torch.equal(layer(x), out)


def test_batch_norm_has_one_statistic_per_codeword():
    layer = Enc(6, codewords=5).double().train()
    x = torch.randn(3, 6, 4, 4, dtype=torch.float64)
    layer.norm.momentum = 1.0
    layer(x)
    with torch.no_grad():
        f = layer.lower(x).flatten(2)  # training statistics: the same batch, the same values
    residuals = f.mT[:, :, None, :] - layer.codewords
    weights = (layer.smoothing * residuals.square().sum(-1)).softmax(2)
    e = (weights[..., None] * residuals).sum(1)
    assert_close(layer.norm.running_mean, e.mean((0, 2)))
    assert layer.norm.running_mean.shape == (5,)


def test_assignments_sum_to_one_over_codewords():
    layer = build()
    weights = layer.assign(torch.randn(2, 6, 20, dtype=torch.float64))
    assert weights.shape == (2, 5, 20)
    assert_close(weights.sum(1), torch.ones(2, 20))


def test_nearer_codewords_get_larger_weights():
    # the stored factor is negative: a positive one would send positions to the farthest word
    layer = Enc(4, codewords=2)
    layer.codewords.data = torch.tensor([[0.0] * 4, [10.0] * 4])
    layer.smoothing.data.fill_(-0.5)
    weights = layer.assign(torch.tensor([[[0.1, 9.0]] * 4]))
    assert weights[0, 0, 0] > 0.99 and weights[0, 1, 1] > 0.99


def test_initialisation():
    layer = Enc(64)
    assert layer.codewords.abs().max() <= (32 * 64) ** -0.5
    assert layer.codewords.abs().max() > 0.9 * (32 * 64) ** -0.5
    assert layer.smoothing.min() >= -1 and layer.smoothing.max() <= 0
    assert layer.smoothing.std() > 0.1


def test_parameter_counts():
    assert count(Enc(512)) == 542_304
    assert count(Enc(512, num_classes=21)) == 542_304 + 512 * 21 + 21
    assert count(Enc(512, codewords=16)) == 542_304 - 16 * (512 + 1 + 2)


def test_no_positions_by_codewords_by_channels_tensor():
    layer, x = Enc(16), torch.randn(1, 16, 20, 20)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        layer(x).sum().backward()
    assert max(saved) < 400 * 32 * 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_sums_over_positions_do_not_overflow_under_autocast(dtype):
    layer, x = Enc(4, codewords=1).eval(), torch.full((1, 4, 128, 128), 50.0)
    for parameter in layer.lower[0].parameters():
        parameter.data.fill_(0.5)  # f = 100: a sum over positions of 1.6e6
    layer.gate.weight.data.mul_(1e-6)
    layer.gate.bias.data.zero_()
    exact = layer(x)
    with torch.autocast("cpu", dtype=dtype):
        out = layer(x)
    assert relative_error(out, exact) < 1e-2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Enc(8)(torch.rand(1, 8, 2, 2), return_se=True), "build it with num_classes="),
        (lambda: Enc(8, codewords=0), "codewords must be a whole number of at least 1"),
        (lambda: Enc(8, num_classes=0), "num_classes must be"),
        (lambda: Enc(0), "channels must be"),
    ],
)
def test_messages(build, message):
    with pytest.raises(ValueError, match=message):
        build()
