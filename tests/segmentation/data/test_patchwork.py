"""Generated scenes: the same bits everywhere, and classes that only the whole image shows."""

from __future__ import annotations

import hashlib
import time

import pytest
import torch

from hamburger.errors import OptionError
from hamburger.segmentation.data import datasets
from hamburger.segmentation.data.patchwork import FAMILIES, PatchworkGlyphs, PatchworkShift

NAMES = ["patchwork", "patchwork-glyphs"]
# of the first scene: a machine or a numpy that draws other bits would train on other data
DIGESTS = {"patchwork": "be9454d80d574f28", "patchwork-glyphs": "019f675a0b330a80"}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_on_every_machine(name):
    image, label = datasets.create(name, "train")[0]
    assert hashlib.sha256(image.numpy().tobytes() + label.numpy().tobytes()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_is_a_function_of_seed_split_and_index(name):
    first, again = (datasets.create(name, "train", length=length) for length in (5, 9))
    assert all(torch.equal(a, b) for i in (3, 1) for a, b in zip(first[i], again[i], strict=True))
    images = [
        datasets.create(name, split, seed=seed)[i].image
        for split in ("train", "val")
        for seed in (0, 1)
        for i in (0, 1)
    ]
    assert len({image.numpy().tobytes() for image in images}) == len(images)


@pytest.mark.parametrize("name", NAMES)
def test_one_twin_of_each_family_in_an_image(name):
    data = datasets.create(name, "val", length=30)
    seen = set()
    for image, label in data:
        assert image.shape == (3, 64, 64) and image.dtype == label.dtype == torch.uint8
        here = label.unique().tolist()
        families = [value // 2 for value in here]
        assert len(set(families)) == len(families) == data.present
        seen.update(here)
    assert seen == set(range(len(data.classes))) and len(data.classes) == len(set(data.classes)) == 10
    assert len(set(data.palette)) == 10


def test_the_shift_is_hidden_in_a_piece_and_plain_in_the_whole():
    """Red minus blue, averaged over a family's pixels, separates twins; of single pixels it hardly does."""
    data = PatchworkShift("val", length=40)
    colours = torch.tensor(list(FAMILIES.values())[: data.families], dtype=torch.float64)
    right = wrong = pixels_right = pixels = 0
    for image, label in data:
        for value in label.unique().tolist():
            rgb = image[:, label == value].double()
            red_over_blue = (rgb[0] - rgb[2]) - (colours[value // 2][0] - colours[value // 2][2])
            sign = 1 if value % 2 == 0 else -1
            right, wrong = right + int(red_over_blue.mean() * sign > 0), wrong + int(red_over_blue.mean() * sign <= 0)
            pixels_right, pixels = pixels_right + int((red_over_blue * sign > 0).sum()), pixels + rgb.shape[1]
    assert wrong <= 0.05 * (right + wrong)
    assert 0.5 < pixels_right / pixels < 0.6


def test_without_glyphs_nothing_tells_twins_apart():
    with_one, without = (PatchworkGlyphs("val", length=20, noise=0, glyphs=n) for n in (1, 0))
    for (image, label), (plain, same) in zip(with_one, without, strict=True):
        assert torch.equal(label, same)
        differs = (image != plain).any(0)
        # at most one glyph of 7 x 7 for each family present: rare
        assert 0 < differs.sum() <= 49 * with_one.present
        for value in label.unique().tolist():
            assert len(plain[:, label == value].unique(dim=1).T) == 1


def test_a_scene_takes_about_a_millisecond():
    data = PatchworkShift("train")
    data[0]
    took = []
    for i in range(30):
        start = time.perf_counter()
        data[i]
        took.append(time.perf_counter() - start)
    assert min(took) < 5e-3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"split": "trian"}, "did you mean 'train'"),
        ({"families": 9}, "present <= families <= 6"),
        ({"present": 6}, "present <= families"),
        ({"noise": -1}, "noise"),
        ({"pieces": 2}, "pieces"),
        ({"seed": -1}, "seed"),
        ({"glyphs": 1}, "no option 'glyphs'"),
    ],
    ids=str,
)
def test_invalid_options_are_named(options, complaint):
    with pytest.raises(OptionError, match=complaint):
        datasets.create("patchwork", **{"split": "train"} | options)
