"""Resizing before the extractor, and rounding to bytes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from hamburger.errors import InputError
from hamburger.generation.visualize import to_bytes
from hamburger_lab.gan_metrics.extractors import resize


def images(*shape):
    return torch.randint(256, (2, 3, *shape), dtype=torch.uint8)


def test_range_type_and_shape():
    for h, w in ((8, 8), (5, 13), (16, 16), (64, 40), (1, 1)):
        out = resize(images(h, w), 16)
        assert out.shape == (2, 3, 16, 16)
        assert out.dtype == torch.float32
        assert 0 <= out.min() <= out.max() <= 1


def test_images_of_the_right_size_are_only_scaled():
    x = images(16, 16)
    assert torch.equal(resize(x, 16), x.float() / 255)
    assert torch.equal(resize(torch.full((1, 3, 9, 9), 255, dtype=torch.uint8), 16), torch.ones(1, 3, 16, 16))


def test_antialiasing_changes_only_downsampling():
    def aliased(x):
        return F.interpolate(x.float() / 255, (16, 16), mode="bilinear").clamp(0, 1)

    small, large = images(8, 8), images(64, 64)
    assert torch.allclose(resize(small, 16), aliased(small), atol=1e-6)
    assert (resize(large, 16) - aliased(large)).abs().max() > 0.05


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
