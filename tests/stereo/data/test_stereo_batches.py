"""Batches of pairs: both images and the disparity are cropped at one place, reproducibly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hamburger.stereo.data import StereoBatches, create_stereo_set
from hamburger.training.image_files import MEAN, STD, normalise

SCENES = create_stereo_set("planes", "train", length=5)  # 64 x 128


def batches(**options):
    return StereoBatches(SCENES, **{"batch": 4, "crop": (32, 48), "seed": 3} | options)


def test_a_crop_of_the_whole_pair_changes_nothing():
    (part,) = batches(crop=(64, 128)).at(0)
    for left, right, disparity, id in zip(*part, strict=True):
        sample = SCENES[SCENES.ids.index(id)]
        assert torch.equal(left, normalise(sample.left)) and torch.equal(right, normalise(sample.right))
        assert torch.equal(disparity, sample.disparity)


@pytest.mark.parametrize("flip", [False, True])
def test_images_and_disparity_are_cropped_at_one_place(flip):
    turned = 0
    for step in range(3):
        (part,) = batches(flip=flip).at(step)
        for left, right, disparity, id in zip(*part, strict=True):
            sample = SCENES[SCENES.ids.index(id)]
            places = [
                (y, x, up)
                for y in range(33)
                for x in range(81)
                for up in ((False, True) if flip else (False,))
                if torch.equal(window(sample.disparity, y, x, up), disparity)
            ]
            (y, x, up) = places[0]
            assert len(places) == 1
            turned += up
            assert torch.equal(normalise(window(sample.left, y, x, up)), left)
            assert torch.equal(normalise(window(sample.right, y, x, up)), right)
    assert (0 < turned < 12) is flip


def window(values, y, x, up):
    values = values.flip(-2) if up else values
    return values[..., y : y + 32, x : x + 48]


def test_small_pairs_are_padded_with_unknown_disparity():
    (part,) = batches(crop=(80, 150), batch=1).at(0)
    known = part.disparity[0] > 0
    rows, columns = known.any(1).nonzero().flatten(), known.any(0).nonzero().flatten()
    assert (len(rows), len(columns)) == (64, 128) and known.sum() == 64 * 128
    assert not part.left[0][:, ~known].any() and not part.right[0][:, ~known].any()
    assert part.left[0][:, known].any()


def test_resident_streamed_and_shared_batches_are_equal():
    expected = batches().at(2)[0]
    for options in ({"resident": "no"}, {"resident": "no", "workers": 2}):
        assert all(torch.equal(a, b) for a, b in zip(batches(**options).at(2)[0][:3], expected[:3], strict=True))
    shared = [batches(rank=rank, world=2).at(2)[0] for rank in range(2)]
    assert torch.equal(torch.cat([part.left for part in shared]), expected.left)
    parts = batches(accumulate=2).at(2)
    assert torch.equal(torch.cat([part.disparity for part in parts]), expected.disparity)
    assert [id for part in parts for id in part.ids] == expected.ids


def test_both_images_are_tinted_alike():
    (plain,), (tinted,) = (batches(photometric=share).at(0) for share in (0.0, 0.3))
    assert torch.equal(plain.disparity, tinted.disparity)
    mean, std = (np.array(values).reshape(3, 1, 1) for values in (MEAN, STD))
    for i in range(4):
        before, after = (
            np.concatenate([(side[i].numpy() * std + mean) * 255 for side in (part.left, part.right)], axis=2)
            for part in (plain, tinted)
        )
        inner = ((after > 1) & (after < 254)).all(0)
        # one linear map of red, green and blue for both: it is fitted on half of the pixels and holds for the others
        inputs = np.concatenate([before[:, inner], np.ones((1, inner.sum()))]).T
        solved, *_ = np.linalg.lstsq(inputs[::2], after[:, inner].T[::2], rcond=None)
        assert np.abs(inputs[1::2] @ solved - after[:, inner].T[1::2]).max() < 0.1
        assert np.abs(after - before).max() > 5
