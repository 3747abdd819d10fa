"""Disparity errors, compared with numpy on all pixels at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hamburger.errors import InputError
from hamburger.stereo.data import StereoSet
from hamburger.stereo.evaluate import mean_errors, measure_pair, summarise_errors


def random_images(seed, count):
    rng = np.random.default_rng(seed)
    images = []
    for _ in range(count):
        size = tuple(rng.integers(1, 12, 2))
        truth = np.where(rng.random(size) < 0.3, 0, rng.uniform(0.5, 40, size)).astype(np.float32)
        prediction = (truth + rng.normal(0, 3, size)).astype(np.float32)
        images.append((prediction, truth, rng.random(size) < 0.7))
    return images


def compute_by_numpy(images, seen):
    keep = [(t > 0) & (s if seen else True) for _, t, s in images]
    off = np.concatenate([np.abs(p.astype(np.float64) - t)[k] for (p, t, _), k in zip(images, keep, strict=True)])
    return (off.mean(), (off > 1).mean(), (off > 3).mean()) if len(off) else None


def measure(images, most=math.inf):
    """As `evaluate_stereo` does.   ->   images 10"""
    sums = [
        measure_pair(*(None if part is None else torch.as_tensor(part) for part in image), most) for image in images
    ]
    return torch.stack(sums)


def summarise(sums):
    pairs = StereoSet()
    pairs.ids = [str(i) for i in range(len(sums))]
    return summarise_errors(sums, pairs, 16)


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_pooled_errors_are_those_of_all_pixels(seed, count):
    images = random_images(seed, count)
    pooled = measure(images, most=20).sum(0)
    for seen, sums in ((False, pooled[:4]), (True, pooled[4:8])):
        expected, actual = compute_by_numpy(images, seen), mean_errors(sums)
        assert (expected is None) == (actual[0] is None)
        assert expected is None or actual == pytest.approx(expected, rel=1e-12)
    assert pooled[8] == sum((truth >= 20).sum() for _, truth, _ in images)


def test_images_weigh_the_same_in_the_image_mean_and_masks_are_counted():
    truth = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    scores = summarise(
        measure(
            [
                (truth + 1, truth, None),  # four pixels, one off
                (truth[:, :1] + 6, truth[:, :1], truth[:, :1] > 0),  # one pixel, six off, which both cameras see
                (truth + 9, 0 * truth, truth < 0),  # no known disparity, but a mask
            ]
        )
    )
    assert scores.epe == 10 / 5 and scores.epe_pair_mean == 7 / 2 and scores.per_pair == {"0": 1, "1": 6, "2": None}
    assert scores.epe_seen == 6 and scores.images_seen == 2 and scores.images == 3


def test_an_error_equal_to_a_bound_is_not_wrong():
    [sums] = measure([(torch.tensor([[2.0, 4.0, 4.5, 9.0]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]]), None)])
    assert mean_errors(sums[:4]) == (7.5 / 3, 2 / 3, 1 / 3)
    assert mean_errors(sums[4:8]) == (None, None, None)


def test_a_prediction_that_is_not_finite_is_wrong():
    [sums] = measure([(torch.tensor([[math.nan, 1.0]]), torch.tensor([[1.0, 1.0]]), None)])
    epe, one, three = mean_errors(sums[:4])
    assert math.isnan(epe) and (one, three) == (0.5, 0.5)


def test_invalid_truths_raise():
    with pytest.raises(InputError, match="write 0 where they are unknown"):
        measure([(torch.zeros(1, 1), torch.tensor([[math.inf]]), None)])
