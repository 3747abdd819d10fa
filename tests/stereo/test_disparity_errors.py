"""Disparity errors, compared with numpy on all pixels at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hamburger.errors import InputError, ShapeError
from hamburger.stereo.evaluate import DisparityErrors, mean_errors


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


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_pooled_errors_are_those_of_all_pixels(seed, count):
    images = random_images(seed, count)
    pooled = DisparityErrors()
    for image in images:
        pooled.update(*(torch.from_numpy(part) for part in image), most=20)
    for seen, counts in ((False, pooled.all), (True, pooled.seen)):
        expected, found = compute_by_numpy(images, seen), mean_errors(counts)
        assert (expected is None) == (found is None)
        assert expected is None or found == pytest.approx(expected, rel=1e-12)
    assert pooled.beyond_reach == sum((truth >= 20).sum() for _, truth, _ in images)


def test_images_weigh_the_same_in_the_image_mean_and_masks_are_counted():
    pooled, truth = DisparityErrors(), torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    assert pooled.image_mean() is None
    pooled.update(truth + 1, truth)  # four pixels, one off
    pooled.update(truth[:, :1] + 6, truth[:, :1], truth[:, :1] > 0)  # one pixel, six off, which both cameras see
    pooled.update(truth + 9, 0 * truth, truth < 0)  # no known disparity, but a mask
    assert mean_errors(pooled.all)[0] == 10 / 5 and pooled.image_mean() == 7 / 2
    assert mean_errors(pooled.seen)[0] == 6 and pooled.images_seen == 2


def test_an_error_equal_to_a_bound_is_not_wrong():
    pooled = DisparityErrors()
    pooled.update(torch.tensor([[2.0, 4.0, 4.5, 9.0]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]]))
    assert mean_errors(pooled.all) == (7.5 / 3, 2 / 3, 1 / 3)
    assert mean_errors(pooled.seen) is None


def test_a_prediction_that_is_not_finite_is_wrong():
    pooled = DisparityErrors()
    pooled.update(torch.tensor([[math.nan, 1.0]]), torch.tensor([[1.0, 1.0]]))
    epe, one, three = mean_errors(pooled.all)
    assert math.isnan(epe) and (one, three) == (0.5, 0.5)


def test_invalid_shapes_and_truths_raise():
    pooled = DisparityErrors()
    with pytest.raises(ShapeError, match="one image h w"):
        pooled.update(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2))
    with pytest.raises(ShapeError, match="must have the same shape"):
        pooled.update(torch.zeros(2, 2), torch.zeros(2, 3))
    with pytest.raises(InputError, match="write 0 where they are unknown"):
        pooled.update(torch.zeros(1, 1), torch.tensor([[math.inf]]))
