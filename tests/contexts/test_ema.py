"""EMANet's unit against numpy loops; which parameters train, and which ranks update the bases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tolerances import assert_close, relative_error

from hamburger.contexts.ema import EMAU
from hamburger.errors import OptionError


def build(**options):
    layer = EMAU(6, **{"rank": 3, **options}).double()
    norm = layer.upper[1]
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        tensor.data = torch.rand_like(tensor) + 0.2
    return layer


def em(features, mu, steps, *, fresh=False):
    """Expectation-maximisation on one sample, pixel by pixel. `fresh`: weights once more after the last M-step."""

    def expectation(mu):
        z = np.array([[column @ basis for basis in mu.T] for column in features.T])
        z = np.exp(z - z.max(1, keepdims=True))
        return z / z.sum(1, keepdims=True)

    for _ in range(steps):
        z = expectation(mu)
        mu = np.stack([features @ (z[:, r] / (1e-6 + z[:, r].sum())) for r in range(z.shape[1])], 1)
        mu = np.stack([basis / (1e-6 + np.sqrt((basis**2).sum())) for basis in mu.T], 1)
    return mu @ (expectation(mu) if fresh else z).T, mu


def by_loops(layer, x, *, fresh=False):
    """Output in evaluation, and the bases that each sample ends with."""
    weight, bias = (t.detach().numpy() for t in (layer.lower.weight[:, :, 0, 0], layer.lower.bias))
    solved = [em(weight @ sample.flatten(1).numpy() + bias[:, None], layer.bases[0].numpy(), layer.steps, fresh=fresh)
             for sample in x]  # fmt: skip
    rebuilt = torch.from_numpy(np.stack([r for r, _ in solved])).view_as(x)
    norm = layer.upper[1]
    y = F.conv2d(F.relu(rebuilt), layer.upper[0].weight)
    y = (y - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + norm.eps).sqrt()
    y = y * norm.weight[:, None, None] + norm.bias[:, None, None]
    return F.relu(x + y), torch.from_numpy(np.stack([mu for _, mu in solved]))


@pytest.mark.parametrize("steps", [1, 3])
def test_unit_matches_its_formula(steps):
    layer, x = build(steps=steps).eval(), torch.randn(2, 6, 5, 3, dtype=torch.float64)
    assert_close(layer(x), by_loops(layer, x)[0])


def test_rebuilding_uses_the_weights_from_before_the_last_m_step():
    layer, x = build(steps=1).eval(), torch.randn(2, 6, 5, 3, dtype=torch.float64)
    assert relative_error(layer(x), by_loops(layer, x, fresh=True)[0]) > 1e-4


def test_parameters_match_table_3():
    layer = EMAU(512)
    assert sum(p.numel() for p in layer.parameters()) == 525_824
    assert layer.bases.shape == (1, 512, 64)
    assert "bases" in layer.state_dict()
    assert_close(layer.bases.norm(dim=1), torch.ones(1, 64))
    assert abs(float(layer.lower.weight.detach().std()) / (2 / 512) ** 0.5 - 1) < 0.02
    assert abs(float(layer.upper[0].weight.detach().std()) / (2 / 512) ** 0.5 - 1) < 0.02


@pytest.mark.parametrize("training", [True, False])
def test_no_gradient_passes_through_the_attention(training):
    layer = build().train(training)
    x = torch.randn(2, 6, 5, 3, dtype=torch.float64, requires_grad=True)
    out, weight = layer(x), torch.randn(2, 6, 5, 3, dtype=torch.float64)
    (out * weight).sum().backward()
    assert torch.equal(x.grad, weight * (out > 0))  # the skip alone, to the bit
    assert all(not p.requires_grad and p.grad is None for p in layer.lower.parameters())
    assert all(p.grad.norm() > 0 for p in layer.upper.parameters())


@pytest.mark.parametrize("renormalize", [False, True])
def test_training_moves_the_bases_towards_the_mean_of_the_batch(renormalize):
    layer, x = build(renormalize=renormalize), torch.randn(4, 6, 5, 3, dtype=torch.float64)
    before, mean = layer.bases.clone(), by_loops(layer, x)[1].mean(0, keepdim=True)
    if renormalize:
        mean = mean / (1e-6 + mean.square().sum(1, keepdim=True).sqrt())
    layer.train()(x)
    assert_close(layer.bases, 0.9 * before + 0.1 * mean)
    assert relative_error(layer.bases, before) > 0.01


def test_evaluation_leaves_the_bases_alone():
    layer, x = build().eval(), torch.randn(2, 6, 5, 3, dtype=torch.float64)
    before = layer.bases.clone()
    first, second = layer(x), layer(x)
    assert torch.equal(layer.bases, before)
    assert torch.equal(first, second)


def test_momentum_is_the_fraction_of_the_old_bases():
    x = torch.randn(2, 6, 5, 3, dtype=torch.float64)
    kept, dropped = build(momentum=1.0), build(momentum=0.0)
    before, mean = kept.bases.clone(), by_loops(dropped, x)[1].mean(0, keepdim=True)
    kept.train()(x)
    dropped.train()(x)
    assert_close(kept.bases, before)
    assert_close(dropped.bases, mean)


def test_ranks_share_one_mean_of_unequal_batches(monkeypatch):
    """Two ranks, simulated one after the other: the terms that each contributes are recorded, then summed for both."""
    x, sent = torch.randn(5, 6, 5, 3, dtype=torch.float64), []
    start, alone = build(), build()
    alone.load_state_dict(start.state_dict())
    alone.train()(x)
    for name, value in (("is_initialized", True), ("get_world_size", 2)):
        monkeypatch.setattr(dist, name, lambda *group, value=value: value)
    shards = (x[:1], x[1:])
    monkeypatch.setattr(dist, "all_reduce", lambda t, group: sent.append(t.clone()))
    for shard in shards:
        layer = build()
        layer.load_state_dict(start.state_dict())
        layer.train()(shard)
    monkeypatch.setattr(dist, "all_reduce", lambda t, group: t.copy_(sent[0] + sent[1]))
    for shard in shards:
        layer = build()
        layer.load_state_dict(start.state_dict())
        layer.train()(shard)
        assert_close(layer.bases, alone.bases)


def test_every_rank_draws_the_same_initial_bases():
    torch.manual_seed(1)
    a = EMAU(8, rank=2)
    torch.manual_seed(2)
    b, c = EMAU(8, rank=2), EMAU(8, rank=2, seed=1)
    assert torch.equal(a.bases, b.bases)
    assert not torch.equal(a.bases, c.bases)


@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_keeps_the_solve_in_float32(autocast):
    layer = EMAU(8, rank=4)
    features = torch.randn(1, 8, 128 * 128).half()  # shares of 1 / n each are below the least normal float16
    exact = layer.attend(features.double())
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        actual = layer.attend(features)
    for ours, theirs in zip(actual, exact, strict=True):
        assert_close(ours.float(), theirs)
    assert layer.bfloat16()(torch.randn(1, 8, 5, 3).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "EMAU: rank must be a whole number of at least 1"),
        ({"steps": 0}, "EMAU: steps must be a whole number of at least 1"),
        ({"momentum": 1.5}, "share of the old bases"),
    ],
)
def test_messages(options, message):
    with pytest.raises(OptionError, match=message):
        EMAU(8, **options)
