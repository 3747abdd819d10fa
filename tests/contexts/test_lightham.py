"""LightHam against its formula, on one map and on several, and how it is differentiated."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close, relative_error

from hamburger.contexts.lightham import LightHam
from hamburger.errors import OptionError, ShapeError
from hamburger.hams import BPTT


def build(channels=8, **options):
    layer = LightHam(channels, **{"rank": 3, "groups": 4, **options}).double()
    for tensor in layer.parameters():
        tensor.data = torch.rand_like(tensor) + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor) * 0.4
    return layer.eval()


def group_norm(norm, x, groups):
    y = x.reshape(x.shape[0], groups, -1)
    y = (y - y.mean(2, keepdim=True)) / (y.var(2, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return y.view_as(x) * norm.weight[:, None] + norm.bias[:, None]


def nmf(x, bases, steps):
    """Multiplicative updates written out; the codes once more at the end."""
    bases = bases.expand(x.shape[0], -1, -1)
    codes = torch.softmax(torch.einsum("bdr,bdn->brn", bases, x), 1)

    def update(codes):
        return (
            codes
            * torch.einsum("bdr,bdn->brn", bases, x)
            / (torch.einsum("bdr,bdn->brn", bases, torch.einsum("bdr,brn->bdn", bases, codes)) + 1e-6)
        )

    for _ in range(steps):
        codes = update(codes)
        bases = (
            bases
            * torch.einsum("bdn,brn->bdr", x, codes)
            / (torch.einsum("bdn,brn->bdr", torch.einsum("bdr,brn->bdn", bases, codes), codes) + 1e-6)
        )
    return torch.einsum("bdr,brn->bdn", bases, update(codes))


def formula(layer, x, steps, groups=4):
    flat, burger = x.flatten(2), layer.hamburger
    z = F.relu(group_norm(layer.squeeze[1], layer.squeeze[0].weight[:, :, 0, 0] @ flat, groups))
    ham = nmf(F.relu(burger.lower.weight @ z + burger.lower.bias[:, None]), burger.ham.dictionary.bases, steps)
    y = F.relu(z + group_norm(burger.norm, burger.upper.weight @ ham, groups))
    y = F.relu(group_norm(layer.align[1], layer.align[0].weight[:, :, 0, 0] @ y, groups))
    return y.unflatten(2, x.shape[2:])


def test_unit_matches_its_formula():
    layer, x = build(inner=12), torch.randn(2, 8, 5, 7, dtype=torch.float64)
    assert_close(layer(x), formula(layer, x, steps=7), slack=100)
    assert relative_error(layer(x), formula(layer, x, steps=6)) > 1e-6  # evaluation runs one more step


def test_several_maps_are_resized_to_the_first():
    layer = build(in_channels=[3, 5, 4])
    maps = [torch.randn(2, c, h, w, dtype=torch.float64) for c, h, w in ((3, 6, 8), (5, 3, 4), (4, 2, 3))]
    stacked = torch.cat([F.interpolate(m, (6, 8), mode="bilinear", align_corners=False) for m in maps], 1)
    assert_close(layer(maps), formula(layer, stacked, steps=7), slack=100)
    assert_close(layer(tuple(maps)), layer(maps))
    assert layer(maps).shape == (2, 8, 6, 8)


def test_training_differentiates_all_steps():
    x = torch.randn(2, 8, 5, 7, dtype=torch.float64)
    full, last = build(), build(grad="one-step")
    last.load_state_dict(full.state_dict())
    assert isinstance(full.hamburger.ham.grad, BPTT)
    assert (full.hamburger.ham.steps, full.hamburger.ham.eval_steps) == (6, 7)

    def gradient(function):
        leaf = x.clone().requires_grad_()
        function(leaf).square().sum().backward()
        return leaf.grad

    assert torch.equal(full(x), last(x))  # the value does not depend on it
    reference = gradient(lambda leaf: formula(full, leaf, steps=7))
    assert_close(gradient(full), reference, slack=1000)
    assert relative_error(gradient(last), reference) > 1e-3


def test_steps_and_rank():
    layer, x = build(steps=2, eval_steps=3, rank=5), torch.randn(2, 8, 5, 7, dtype=torch.float64)
    assert layer.hamburger.ham.dictionary.bases.shape == (1, 8, 5)
    assert layer.hamburger.ham.steps == 2
    assert_close(layer(x), formula(layer, x, steps=3), slack=100)


def test_parameters_and_their_start():
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    square, norm = 512 * 512, 2 * 512
    layer = LightHam(512)
    assert count(layer) == (square + norm) + (2 * square + 512 + norm) + (square + norm) == 1_052_160
    assert count(LightHam(512, inner=256)) == 2 * (512 * 256) + 512 + norm + 2 * 256 * 256 + 256 + 512
    assert count(LightHam(256, in_channels=[64, 160, 256])) == 480 * 256 + 3 * 256 * 256 + 7 * 256  # SegNeXt-T
    assert layer.squeeze[1].num_groups == layer.hamburger.norm.num_groups == 32
    assert abs(float(layer.squeeze[0].weight.detach().std()) / (2 / 512) ** 0.5 - 1) < 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 40}, "32 groups do not divide channels=40; choose a multiple, or set groups"),
        ({"channels": 32, "inner": 40}, "32 groups do not divide inner=40"),
        ({"channels": 32, "in_channels": []}, "at least one size"),
        ({"channels": 32, "in_channels": [3, 0]}, "in_channels must be a whole number"),
        ({"channels": 32, "grad": "btpp"}, "bptt"),
    ],
)
def test_messages(options, message):
    with pytest.raises((OptionError, ValueError), match=message):
        LightHam(**options)


def test_messages_about_maps():
    with pytest.raises(ShapeError, match=r"2 map\(s\) of \(3, 5\) channels, got \[\(1, 8, 4, 4\)\]; set in_channels"):
        build(in_channels=[3, 5])(torch.randn(1, 8, 4, 4, dtype=torch.float64))
