"""Generated shapes: the same bits everywhere, correct boxes and masks, light that only the whole image shows."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from hamburger.detection.data import create_detection_set
from hamburger.detection.data.shapes import FORMS, MAX_HIDDEN, ShapesSet, draw_shape
from hamburger.errors import OptionError

# hash of the first scene: a machine or a numpy that draws other bits would train on other data
DIGEST = "13fbff954b13a7a6"


def test_the_same_bits_on_every_machine():
    scene = ShapesSet("train")[0]
    content = b"".join(each.numpy().tobytes() for each in scene)
    assert hashlib.sha256(content).hexdigest()[:16] == DIGEST


def test_a_scene_is_a_function_of_seed_split_and_index():
    first, again = (ShapesSet("train", length=length) for length in (5, 9))
    assert all(torch.equal(a, b) for i in (3, 1) for a, b in zip(first[i], again[i], strict=True))
    images = [ShapesSet(split, seed=seed)[i].image for split in ("train", "val") for seed in (0, 1) for i in (0, 1)]
    assert len({image.numpy().tobytes() for image in images}) == len(images)
    assert len(list(first)) == 5


def test_boxes_and_masks_cover_the_visible_part():
    data, seen = ShapesSet("val", size=96, length=30), set()
    for scene in data:
        m = len(scene.labels)
        assert 1 <= m <= data.shapes and scene.masks.shape == (m, 96, 96) and scene.image.shape == (3, 96, 96)
        assert scene.masks.sum(0).max() == 1  # one shape hides another
        assert not scene.crowd.any() and torch.equal(scene.areas, scene.masks.flatten(1).sum(1).double())
        for box, mask in zip(scene.boxes.tolist(), scene.masks.numpy(), strict=True):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            assert box == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert len(set((scene.labels % 2).tolist())) == 1  # one twin in an image
        seen.update(scene.labels.tolist())
    assert seen == set(range(10)) and len(set(data.classes)) == len(set(data.palette)) == 10


def test_shapes_overlap_and_none_is_hidden_by_more_than_half():
    """Of squares: the seen part is at least half of the square that its longer side gives."""
    hidden = 0
    for scene in ShapesSet("val", size=96, length=40):
        sides = (scene.boxes[:, 2:] - scene.boxes[:, :2]).amax(1).tolist()
        for label, area, side in zip(scene.labels.tolist(), scene.areas.tolist(), sides, strict=True):
            if list(FORMS)[label // 2] == "square":
                assert MAX_HIDDEN * area >= side * side
                hidden += area < side * side
    assert hidden > 3


def test_every_form_lies_inside_the_image():
    from hamburger.training.loader import KeyedRng

    for number in range(50):
        for form in FORMS:
            mask = draw_shape(form, KeyedRng(number), 64)
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
            assert height % 2 and abs(height - width) <= 1 and 64 // 12 * 2 + 1 <= height <= 64 // 6 * 2 + 1


def test_the_light_shows_in_the_whole_image_but_not_in_one_shape():
    """Red minus blue beyond a form's own colour tells the twin from all pixels, hardly from those of one shape."""
    whole, single = [], []
    for scene in ShapesSet("val", length=120):
        sign = 1 - 2 * int(scene.labels[0] % 2)
        beyond = scene.image[0].double() - scene.image[2].double()
        for label, mask in zip(scene.labels.tolist(), scene.masks, strict=True):
            red, _, blue = list(FORMS.values())[label // 2]
            beyond[mask] -= red - blue
        whole.append(bool(beyond.mean() * sign > 0))
        single += [bool(beyond[mask].mean() * sign > 0) for mask in scene.masks]
    assert np.mean(whole) > 0.95
    assert 0.55 < np.mean(single) < 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "trian"}, "did you mean 'train'"),
        ({"size": 16}, "at least 32"),
        ({"tiles": 2000}, "at most 1024"),
        ({"jitter": -1}, "jitter"),
        ({"glyphs": 1}, "no option 'glyphs'"),
        ({"root": "there"}, "reads no folder"),
    ],
    ids=str,
)
def test_invalid_options_raise(options, message):
    with pytest.raises(OptionError, match=message):
        create_detection_set("shapes", **{"split": "train"} | options)
