"""Average precision: small cases by hand, crowds, sizes, processes, and torchmetrics on random detections."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hamburger import distributed
from hamburger.detection.data import Scene
from hamburger.detection.evaluate import SUMMARY, describe_image, gather_images, score_images

CLASSES, SIDE = ("a", "b", "c", "d"), 160


def fill_boxes(boxes):
    masks = torch.zeros(len(boxes), SIDE, SIDE, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = True
    return masks


def make_scene(boxes, labels=None, crowd=None, areas=None):
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    masks = fill_boxes(boxes)
    labels = torch.zeros(len(boxes), dtype=torch.int64) if labels is None else torch.tensor(labels)
    crowd = torch.zeros(len(boxes), dtype=torch.bool) if crowd is None else torch.tensor(crowd)
    areas = masks.sum((1, 2)).double() if areas is None else torch.tensor(areas, dtype=torch.float64)
    return Scene(torch.zeros(3, SIDE, SIDE, dtype=torch.uint8), boxes, labels, masks, areas, crowd)


def make_detections(boxes, scores, labels=None):
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    labels = torch.zeros(len(boxes), dtype=torch.int64) if labels is None else torch.tensor(labels)
    return {"boxes": boxes, "labels": labels, "scores": torch.tensor(scores), "masks": fill_boxes(boxes)}


def score(*pairs):
    return score_images([describe_image(i, *pair) for i, pair in enumerate(pairs)], CLASSES)


A, B, C, D = [0, 0, 20, 20], [40, 0, 60, 20], [0, 40, 20, 60], [40, 40, 60, 60]
NOWHERE = [100, 100, 120, 120]


def test_right_wrong_right_of_four_objects():
    """Precision 1 up to recall 1/4, 2/3 up to 1/2, then 0: 26, 25 and 50 of the 101 recalls."""
    scores = score((make_scene([A, B, C, D]), make_detections([A, NOWHERE, B], [0.9, 0.8, 0.7])))
    expected = (26 + 25 * 2 / 3) / 101
    for each in (scores.box, scores.mask):
        assert [each[name] for name in ("map", "map_50", "map_75")] == pytest.approx([expected] * 3)
        assert each["mar_100"] == 0.5 and each["mar_1"] == 0.25
    assert scores.mask_map == scores.mask["map"] and scores.box_map == scores.box["map"] and scores.images == 1
    assert scores.per_class == {"a": scores.mask_map, "b": None, "c": None, "d": None}


def test_an_overlap_counts_up_to_its_threshold():
    """15 of 20 columns shared, 25 in either: an overlap of 0.6 is right at 0.5, 0.55 and 0.6."""
    scores = score((make_scene([[0, 0, 20, 20]]), make_detections([[5, 0, 25, 20]], [0.9])))
    assert scores.box_map == scores.mask_map == pytest.approx(0.3)
    assert scores.box["map_50"] == pytest.approx(1) and scores.box["map_75"] == 0


def test_an_object_is_found_once_and_only_by_its_class():
    twice = score((make_scene([A, B]), make_detections([A, A, B], [0.9, 0.8, 0.7])))
    assert twice.mask_map == pytest.approx((51 + 50 * 2 / 3) / 101)
    other = score((make_scene([A, B], [0, 1]), make_detections([A, B], [0.9, 0.8], [0, 0])))
    assert other.per_class == pytest.approx({"a": 1, "b": 0, "c": None, "d": None}) and other.mask_map == pytest.approx(
        0.5
    )


def test_a_crowd_is_neither_right_nor_wrong():
    group = [80, 80, 140, 140]
    detections = make_detections([NOWHERE, A], [0.9, 0.5])  # the first lies inside the group
    assert score((make_scene([A, group], crowd=[False, True]), detections)).mask_map == pytest.approx(1)
    assert score((make_scene([A, group], crowd=[False, True]), detections)).box["mar_100"] == 1
    assert score((make_scene([A]), detections)).mask_map == pytest.approx(0.5)
    alone = score((make_scene([group], crowd=[True]), detections))
    assert alone.mask_map is None and alone.per_class["a"] is None


def test_sizes_are_those_of_the_annotated_area():
    scores = score((make_scene([A, B], areas=[2000.0, 100.0]), make_detections([A], [0.9])))
    for each in (scores.box, scores.mask):
        assert (each["map_small"], each["map_medium"], each["map_large"]) == pytest.approx((0, 1, None))
        assert (each["mar_small"], each["mar_medium"], each["mar_large"]) == (0, 1, None)


def test_empty_detections_and_empty_scenes():
    nothing = make_detections([], [])
    assert score((make_scene([A]), nothing)).mask_map == score((make_scene([A]), nothing)).box["mar_100"] == 0
    assert score((make_scene([]), nothing)).mask_map is None
    assert score((make_scene([]), make_detections([A], [0.5]))).box_map is None
    # a detection in an empty scene is wrong
    assert (
        score((make_scene([A]), make_detections([A], [0.5])), (make_scene([]), make_detections([A], [0.9]))).mask_map
        == 0.5
    )


def test_nothing_is_printed(capfd):
    score((make_scene([A]), make_detections([A], [0.9])))
    assert capfd.readouterr() == ("", "")


def random_images(seed, count=15):
    """Objects, some of them crowds, and detections: shifted copies, doubles, wrong classes, and nothing at all."""
    rng = np.random.default_rng(seed)

    def boxes(centres, sides):
        made = np.round(np.concatenate([centres - sides / 2, centres + sides / 2], 1).clip(0, SIDE - 1))
        made[:, 2:] = np.maximum(made[:, 2:], made[:, :2] + 1)
        return made

    pairs = []
    for _ in range(count):
        m, extra = int(rng.integers(0, 8)), int(rng.integers(0, 5))
        real = boxes(rng.uniform(0, SIDE, (m, 2)), rng.uniform(5, 120, (m, 2)))
        labels, copies = rng.integers(0, len(CLASSES) - 1, m), rng.integers(0, 3, m)  # the last class has no object
        shifted = np.repeat(real, copies, 0) + rng.normal(0, 3, (copies.sum(), 4))
        detected_boxes = boxes((shifted[:, :2] + shifted[:, 2:]) / 2, shifted[:, 2:] - shifted[:, :2])
        detected_boxes = np.concatenate(
            [detected_boxes, boxes(rng.uniform(0, SIDE, (extra, 2)), rng.uniform(5, 80, (extra, 2)))]
        )
        named = np.concatenate([np.repeat(labels, copies), rng.integers(0, len(CLASSES), extra)])
        named = np.where(rng.random(len(named)) < 0.2, rng.integers(0, len(CLASSES), len(named)), named)
        scores = np.round(rng.random(len(named)), 2 if seed % 2 else 9).astype(np.float32)  # ties, or none
        scene = make_scene(real, labels, rng.random(m) < 0.15, rng.uniform(50, 15000, m))
        pairs.append((scene, make_detections(detected_boxes, scores, named)))
    return pairs


@pytest.mark.parametrize("seed", range(4))
def test_scores_match_torchmetrics(seed):
    """torchmetrics calls pycocotools too: this checks how boxes, areas and crowds are handed to it."""
    from torchmetrics.detection import MeanAveragePrecision

    pairs = random_images(seed)
    # its own thresholds are rounded to float32, which moves a recall of exactly 0.1 to the next one
    grid = {"iou_thresholds": np.linspace(0.5, 0.95, 10).tolist(), "rec_thresholds": np.linspace(0, 1, 101).tolist()}
    metric = MeanAveragePrecision(class_metrics=True, **grid)
    for scene, detections in pairs:
        truth = {"boxes": scene.boxes, "labels": scene.labels, "area": scene.areas, "iscrowd": scene.crowd.long()}
        metric.update([detections], [truth])
    theirs, scores = metric.compute(), score(*pairs)
    for name in SUMMARY:
        ours = scores.box[name]
        assert (-1 if ours is None else ours) == pytest.approx(theirs[name].item(), abs=1e-6), name
    assert scores.mask == pytest.approx(scores.box)  # these masks fill their boxes
    each = zip(theirs["classes"].tolist(), theirs["map_per_class"].tolist(), strict=True)
    for label, value in each:
        class_score = scores.per_class[CLASSES[label]]
        assert (-1 if class_score is None else class_score) == pytest.approx(value, abs=1e-6)


def test_scores_do_not_depend_on_how_processes_share_the_images(monkeypatch):
    pairs = random_images(3)
    images = [describe_image(i, *pair) for i, pair in enumerate(pairs)]
    assert gather_images(images) == images
    parts = [images[0::2], images[1::2]]

    def all_gather(into, part):
        into[:] = parts

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed.dist, "all_gather_object", all_gather)
    for part in parts:
        assert score_images(gather_images(part), CLASSES) == score_images(images, CLASSES)
