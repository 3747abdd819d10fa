"""The contract of every context module, tested over the registry."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import assert_close, relative_error
from torch import nn
from torch.utils.checkpoint import checkpoint

import hamburger as hb
from hamburger.insertion.insert import POSITION_BLIND

NAMES = hb.list_contexts()
CHANNELS = 64

# Contexts whose reach is limited on purpose, with the reason. All others are global.
LOCAL = {"sanet": "attends within a few pooled pixels", "pooling": "averages a window"}


def build(name, **options):
    """Return the context with its zero-initialised gates opened, so that its output is visible."""
    torch.manual_seed(0)
    layer = hb.create_context(name, channels=CHANNELS, **options)
    for parameter in layer.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)
    return layer


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.mark.parametrize("size", [(2, 16, 16), (1, 13, 9), (3, 7, 8), (1, 5, 5)], ids=str)
def test_the_shape_is_kept(name, size):
    b, h, w = size
    z = torch.randn(b, CHANNELS, h, w)
    out = build(name).eval()(z)
    assert out.shape == z.shape
    assert out.dtype == z.dtype
    assert out.isfinite().all()


def test_a_batch_of_one_trains(name):
    layer = build(name).train()
    out = layer(torch.randn(1, CHANNELS, 9, 11, requires_grad=True))
    out.square().mean().backward()
    assert out.isfinite().all()


def test_gradients_are_finite_and_reach_the_input_and_every_parameter(name):
    layer = build(name).train()
    z = torch.randn(2, CHANNELS, 9, 11, requires_grad=True)
    layer(z).square().mean().backward()
    assert z.grad.isfinite().all() and z.grad.norm() > 0
    for key, parameter in layer.named_parameters():
        if name == "ema" and key.startswith("lower"):
            assert parameter.grad is None or not parameter.grad.any()  # its paper sends none through the attention
            continue
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.norm() > 0, key


def test_distant_positions_influence_each_other(name):
    """A change in one corner changes the opposite corner."""
    if name in LOCAL:
        pytest.skip(LOCAL[name])
    layer = build(name).eval()
    z = torch.randn(1, CHANNELS, 24, 24)
    moved = z.clone()
    moved[:, :, :8, :8] += 2.0
    change = (layer(moved) - layer(z))[:, :, 16:, 16:].abs().max()
    assert change > 1e-6, f"'{name}' is local; if its paper says so, add it to LOCAL"


def test_eval_is_deterministic_and_independent_of_the_batch(name):
    layer, z = build(name).eval(), torch.randn(3, CHANNELS, 8, 10)
    first = layer(z)
    assert torch.equal(layer(z), first)
    assert_close(torch.cat([layer(image[None]) for image in z]), first, slack=5)


def test_eval_does_not_change_the_layer(name):
    layer = build(name).eval()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer(torch.randn(2, CHANNELS, 8, 8))
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_permuting_positions_permutes_the_output(name):
    if name not in POSITION_BLIND:
        pytest.skip("sees where a position is, by design")
    layer, z = build(name).eval(), torch.randn(2, CHANNELS, 1, 60)
    order = torch.randperm(60)
    assert_close(layer(z[..., order]), layer(z)[..., order], slack=10)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_autocast_is_finite_and_near_float32(name, scale, precision):
    layer, z = build(name).eval(), torch.randn(2, CHANNELS, 12, 12) * scale
    exact = layer(z)
    z.requires_grad_()
    with torch.autocast("cpu", dtype=precision):
        out = layer(z)
    assert out.isfinite().all()
    out.float().square().mean().backward()
    assert z.grad.isfinite().all()
    assert relative_error(out, exact) < 0.25  # at a cold temperature rounding moves some positions to another basis


def test_float64_is_computed_in_float64(name):
    layer, z = build(name).eval(), torch.randn(2, CHANNELS, 7, 9)
    exact = copy.deepcopy(layer).double()(z.double())
    assert exact.dtype == torch.float64
    assert relative_error(layer(z), exact) < 1e-3


def test_state_dicts_are_complete_from_the_constructor_on(name):
    layer, z = build(name), torch.randn(2, CHANNELS, 8, 8)
    keys = set(layer.state_dict())
    layer.train()(z)
    assert set(layer.state_dict()) == keys
    fresh = hb.create_context(name, channels=CHANNELS)
    fresh.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(fresh.eval()(z), layer.eval()(z))
    assert torch.equal(copy.deepcopy(layer)(z), layer(z))


def test_channels_last_gives_the_same_values(name):
    layer, z = build(name).eval(), torch.randn(2, CHANNELS, 8, 10)
    assert_close(layer(z.contiguous(memory_format=torch.channels_last)), layer(z), slack=5)


def test_unknown_option_suggests_the_nearest(name):
    with pytest.raises(TypeError, match="has no option 'chanels'"):
        hb.create_context(name, channels=CHANNELS, chanels=3)


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_gradient_checkpointing_changes_nothing(name, reentrant):
    results = []
    for checkpointed in (False, True):
        layer = build(name).train()
        for _ in range(2):
            z = torch.linspace(-3, 3, 2 * CHANNELS * 63).cos().view(2, CHANNELS, 9, 7).requires_grad_()
            y = checkpoint(layer, z, use_reentrant=reentrant) if checkpointed else layer(z)
            (y * torch.linspace(0, 9, y.numel()).sin().view(y.shape)).sum().backward()
        trained = [p.grad for p in layer.parameters() if p.requires_grad]
        results.append([y.detach(), z.grad, *trained, *(b.double() for b in layer.buffers())])
    for ours, expected in zip(*results, strict=True):
        assert_close(ours, expected)
