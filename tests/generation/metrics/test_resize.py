"""Resizers against each other and against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from hamburger.errors import InputError, OptionError, ShapeError
from hamburger.generation.metrics.extractors import RESIZERS, resize
from hamburger.generation.visualize import to_bytes


def images(*shape):
    return torch.randint(256, (2, 3, *shape), dtype=torch.uint8)


@pytest.mark.parametrize("resizer", RESIZERS)
def test_range_type_and_shape(resizer):
    for h, w in ((8, 8), (5, 13), (16, 16), (64, 40), (1, 1)):
        out = resize(images(h, w), 16, resizer)
        assert out.shape == (2, 3, 16, 16)
        assert out.dtype == torch.float32
        assert 0 <= out.min() <= out.max() <= 1


@pytest.mark.parametrize("resizer", RESIZERS)
def test_images_of_the_right_size_are_only_scaled(resizer):
    x = images(16, 16)
    assert torch.equal(resize(x, 16, resizer), x.float() / 255)
    assert torch.equal(resize(torch.full((1, 3, 9, 9), 255, dtype=torch.uint8), 16, resizer), torch.ones(1, 3, 16, 16))


def test_antialiasing_changes_only_downsampling():
    small, large = images(8, 8), images(64, 64)
    assert torch.allclose(resize(small, 16, "bilinear-antialias"), resize(small, 16, "bilinear"), atol=1e-6)
    assert (resize(large, 16, "bilinear-antialias") - resize(large, 16, "bilinear")).abs().max() > 0.05


def test_tensorflow1_by_hand():
    """Output i of 4 is at i / 2 of 2 inputs: a, the middle, b, and b again past the edge."""
    x = torch.tensor([0, 255], dtype=torch.uint8).expand(1, 3, 2, 2).contiguous()
    assert resize(x, 4, "bilinear-tf1")[0, 0, 0].tolist() == [0, 0.5, 1, 1]
    assert resize(x.mT.contiguous(), 4, "bilinear-tf1")[0, 0, :, 0].tolist() == [0, 0.5, 1, 1]
    halved = resize(images(32, 32), 16, "bilinear-tf1")
    assert halved.shape == (2, 3, 16, 16)
    whole = images(32, 32)
    assert torch.equal(resize(whole, 16, "bilinear-tf1"), whole[:, :, ::2, ::2].float() / 255)


def test_plain_is_torch():
    x = images(7, 9)
    assert torch.equal(resize(x, 16, "bilinear"), F.interpolate(x.float() / 255, (16, 16), mode="bilinear").clamp(0, 1))


def test_rounding_to_bytes():
    x = torch.tensor([-2.0, -1, -0.999, 0, 0.999, 1, 5])
    assert to_bytes(x).tolist() == [0, 0, 0, 128, 255, 255, 255]
    every = torch.arange(256)
    assert torch.equal(to_bytes(every / 127.5 - 1), every.byte())
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match="to_bytes: images have NaN or infinity"):
            to_bytes(torch.tensor([0.0, value]))
    with pytest.raises(InputError):
        to_bytes(every)


def test_error_messages():
    with pytest.raises(InputError, match="to_bytes"):
        resize(torch.rand(1, 3, 8, 8), 16)
    with pytest.raises(ShapeError):
        resize(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), 16)
    with pytest.raises(OptionError, match="bilinear"):
        resize(images(8, 8), 16, "bilinea")
