"""Augmented scenes and batches of them: functions of seed and step, objects that stay with their pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hamburger.detection.data import Scene, SceneBatches, augment_scene, find_boxes
from hamburger.detection.data.shapes import ShapesSet
from hamburger.training.augment import AugmentedView

SCENES = ShapesSet("train", size=64, length=10)


def equal(one, other):
    return all(
        torch.equal(a, b)
        for x, y in zip(one.targets, other.targets, strict=True)
        for a, b in zip(x.values(), y.values(), strict=True)
    ) and all(torch.equal(a, b) for a, b in zip(one.images, other.images, strict=True))


def test_a_view_of_the_whole_image_changes_nothing():
    scene = SCENES[0]
    image, target = augment_scene(scene, AugmentedView(64, 64, 0, 0, False), crop=64)
    assert torch.equal(image, scene.image.float() / 255)
    assert torch.equal(target["boxes"], scene.boxes) and torch.equal(target["masks"].bool(), scene.masks)
    assert torch.equal(target["labels"], scene.labels + 1)  # 0 is the background


def test_a_mirrored_view():
    scene = SCENES[0]
    image, target = augment_scene(scene, AugmentedView(64, 64, 0, 0, True), crop=64)
    assert torch.equal(image, scene.image.flip(2).float() / 255)
    assert torch.equal(target["masks"].bool(), scene.masks.flip(2))
    assert torch.equal(target["boxes"][:, [0, 2]], 64 - scene.boxes[:, [2, 0]])


def test_views_are_resized_and_cropped_like_torch():
    scene = SCENES[1]
    image, target = augment_scene(scene, AugmentedView(96, 96, 10, 20, False), crop=48)
    expected = F.interpolate(scene.image[None].float() / 255, (96, 96), mode="bilinear")[0, :, 10:58, 20:68]
    assert torch.allclose(image, expected, atol=1e-5)
    masks = F.interpolate(scene.masks[None].byte(), (96, 96), mode="nearest-exact")[0, :, 10:58, 20:68].bool()
    kept = masks.flatten(1).sum(1) >= 4
    assert 0 < kept.sum() < len(kept)  # some objects are cropped away
    assert torch.equal(target["masks"].bool(), masks[kept]) and torch.equal(target["labels"], scene.labels[kept] + 1)


def test_padding_has_the_background_colour_and_crowds_are_left_out():
    scene = SCENES[2]
    crowd = torch.zeros_like(scene.crowd)
    crowd[0] = True
    image, target = augment_scene(
        scene._replace(crowd=crowd), AugmentedView(64, 64, -8, 0, False), crop=80, background=(0.1, 0.2, 0.3)
    )
    assert image[:, 0, 0].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert not target["masks"][:, :8].any() and len(target["labels"]) == len(scene.labels) - 1
    assert torch.equal(target["boxes"], scene.boxes[1:] + torch.tensor([0.0, 8, 0, 8]))


def test_a_scene_without_objects():
    image = torch.zeros(3, 20, 30, dtype=torch.uint8)
    none = torch.zeros(0)
    scene = Scene(image, torch.zeros(0, 4), none.long(), torch.zeros(0, 20, 30).bool(), none.double(), none.bool())
    _, target = augment_scene(scene, AugmentedView(20, 30, 0, 0, False), crop=32)
    assert target["boxes"].shape == (0, 4) and target["masks"].shape == (0, 32, 32)


def test_boxes_are_the_smallest_around_masks():
    masks = np.random.default_rng(0).random((20, 9, 13)) < 0.03
    masks = masks[masks.any((1, 2))]
    places = [np.nonzero(mask) for mask in masks]
    expected = [[x.min(), y.min(), x.max() + 1, y.max() + 1] for y, x in places]
    assert find_boxes(torch.from_numpy(masks)).tolist() == expected


def test_the_batch_is_a_function_of_seed_and_step():
    options = {"batch": 4, "crop": 64, "scales": (0.75, 1.5)}
    read, kept = (SceneBatches(SCENES, **options, resident=resident) for resident in ("no", "yes"))
    threads = SceneBatches(SCENES, **options, resident="no", workers=2)
    stream = dict(enumerate(threads.run(2, 5), start=2))
    for step in (4, 3):
        [one], [other] = read.at(step), kept.at(step)
        assert equal(one, other) and equal(one, stream[step][0]) and one.ids == other.ids
        assert all(t["labels"].min() > 0 and t["labels"].max() <= 10 for t in one.targets)
    assert not equal(read.at(3)[0], SceneBatches(SCENES, **options, seed=1).at(3)[0])


def test_processes_and_micro_batches_share_the_global_batch():
    options = {"crop": 64, "resident": "no"}
    [whole] = SceneBatches(SCENES, batch=8, **options).at(7)
    ids = [
        id
        for part in (0, 1)
        for rank in (0, 1)
        for id in SceneBatches(SCENES, batch=8, rank=rank, world=2, accumulate=2, **options).at(7)[part].ids
    ]
    assert ids == whole.ids
