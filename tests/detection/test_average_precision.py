"""Average precision against COCO's own tools and torchmetrics, on random detections."""

from __future__ import annotations

import contextlib
import io
import math

import numpy as np
import pytest
import torch

from hamburger.detection.average_precision import (
    RECALLS,
    THRESHOLDS,
    AveragePrecision,
    Found,
    Truth,
    at_recalls,
    box_areas,
    box_overlaps,
    mask_overlaps,
)

K, SIDE = 4, 160
KINDS = ("boxes", "masks")
# beside `map`, in the order of COCO's summary
COCO = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")
COCO += ("mar_1", "mar_10", "mar_100", "mar_small", "mar_medium", "mar_large")


def drawn(seed, images=15):
    """Objects, some of them groups, and detections: shifted copies, doubles, mistaken classes, and nothing at all."""
    rng = np.random.default_rng(seed)

    def boxes(centres, sides):
        made = np.round(np.concatenate([centres - sides / 2, centres + sides / 2], 1).clip(0, SIDE))
        made[:, 2:] = np.maximum(made[:, 2:], made[:, :2] + 1)
        return made

    def masks(of):
        made = np.zeros((len(of), SIDE, SIDE), bool)
        for mask, (left, top, right, bottom) in zip(made, of.astype(int), strict=True):
            mask[top:bottom, left:right] = rng.random((bottom - top, right - left)) < 0.95
        return made

    found, truth = [], []
    for _ in range(images):
        m, extra = int(rng.integers(0, 8)), int(rng.integers(0, 5))
        real = boxes(rng.uniform(0, SIDE, (m, 2)), rng.uniform(5, 120, (m, 2)))
        labels, copies = rng.integers(0, K - 1, m), rng.integers(0, 3, m)  # the last class has no object
        shifted = np.repeat(real, copies, 0) + rng.normal(0, 3, (copies.sum(), 4))
        seen = boxes((shifted[:, :2] + shifted[:, 2:]) / 2, shifted[:, 2:] - shifted[:, :2])
        seen = np.concatenate([seen, boxes(rng.uniform(0, SIDE, (extra, 2)), rng.uniform(5, 80, (extra, 2)))])
        named = np.concatenate([np.repeat(labels, copies), rng.integers(0, K, extra)])
        named = np.where(rng.random(len(named)) < 0.2, rng.integers(0, K, len(named)), named)
        scores = np.round(rng.random(len(named)), 2 if seed % 2 else 9).astype(np.float32)  # ties, or none
        found.append({"boxes": torch.from_numpy(seen).float(), "labels": torch.from_numpy(named)})
        found[-1] |= {"scores": torch.from_numpy(scores), "masks": torch.from_numpy(masks(seen))}
        truth.append({"boxes": torch.from_numpy(real).float(), "labels": torch.from_numpy(labels)})
        truth[-1] |= {"iscrowd": torch.from_numpy((rng.random(m) < 0.15).astype(np.int64))}
        truth[-1] |= {"masks": torch.from_numpy(masks(real)), "area": torch.from_numpy(rng.uniform(50, 15000, m))}
    return found, truth


def ours(found, truth, kind, order=None):
    return counted(found, truth, kind, order).scores()


def counted(found, truth, kind, order=None):
    counts = AveragePrecision(K)
    for i in range(len(found)) if order is None else order:
        one, other = found[i], truth[i]
        crowd = other["iscrowd"].bool()
        overlaps = (box_overlaps if kind == "boxes" else mask_overlaps)(one[kind], other[kind], crowd)
        areas = box_areas(one["boxes"]) if kind == "boxes" else one["masks"].flatten(1).sum(1)
        seen = Found(one["labels"].numpy(), one["scores"].numpy(), areas.numpy())
        counts.update(i, seen, Truth(other["labels"].numpy(), other["area"].numpy(), crowd.numpy()), overlaps)
    return counts


def compared(mine, theirs):
    """theirs has -1 for what no object decides"""
    for name, value in theirs.items():
        assert (-1 if math.isnan(mine[name]) else mine[name]) == pytest.approx(float(value), abs=1e-6), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_the_scores_are_those_of_cocos_tools(seed, kind):
    tools, evaluation = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    from pycocotools import mask as masks

    found, truth = drawn(seed)

    def written(images):
        notes = []
        for i, image in enumerate(images):
            for j, label in enumerate(image["labels"].tolist()):
                left, top, right, bottom = image["boxes"][j].tolist()
                pixels = image["masks"][j].numpy()
                area = float(pixels.sum()) if kind == "masks" else (right - left) * (bottom - top)
                note = {"id": len(notes) + 1, "image_id": i, "category_id": label, "iscrowd": 0, "area": area}
                note |= {"bbox": [left, top, right - left, bottom - top]}
                note |= {"segmentation": masks.encode(np.asfortranarray(pixels.astype(np.uint8)))}
                if "scores" in image:
                    note["score"] = image["scores"][j].item()
                else:
                    note |= {"iscrowd": image["iscrowd"][j].item(), "area": image["area"][j].item()}
                notes.append(note)
        every = {"info": {}, "annotations": notes}
        every |= {"images": [{"id": i, "height": SIDE, "width": SIDE} for i in range(len(images))]}
        made = tools.COCO()
        made.dataset = every | {"categories": [{"id": i} for i in range(K)]}
        made.createIndex()
        return made

    with contextlib.redirect_stdout(io.StringIO()):
        judge = evaluation.COCOeval(written(truth), written(found), {"boxes": "bbox", "masks": "segm"}[kind])
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    compared(ours(found, truth, kind), dict(zip(COCO, judge.stats, strict=True)))


@pytest.mark.parametrize("seed", range(4))
def test_the_scores_are_those_of_torchmetrics(seed):
    pytest.importorskip("pycocotools")
    from torchmetrics.detection import MeanAveragePrecision

    found, truth = drawn(seed)
    # its own thresholds are rounded to float32, which moves a recall of exactly 0.1 to the next one
    grid = {"iou_thresholds": THRESHOLDS.tolist(), "rec_thresholds": RECALLS.tolist()}
    judge = MeanAveragePrecision(class_metrics=True, **grid)
    judge.update(found, truth)
    theirs = judge.compute()
    mine = ours(found, truth, "boxes")
    compared(mine, {name: theirs[name] for name in COCO})
    each = dict(zip(theirs["classes"].tolist(), theirs["map_per_class"].tolist(), strict=True))
    for label, value in each.items():
        assert (-1 if math.isnan(mine["per_class"][label]) else mine["per_class"][label]) == pytest.approx(
            value, abs=1e-6
        )


def test_the_order_of_images_does_not_matter():
    found, truth = drawn(1)
    assert str(ours(found, truth, "masks", order=range(14, -1, -1))) == str(ours(found, truth, "masks"))


def test_what_is_perfect_and_what_is_empty():
    found, truth = drawn(0)
    for each in truth:
        each["iscrowd"].zero_()
    exact = [{**each, "scores": torch.ones(len(each["labels"]))} for each in truth]
    scores = ours(exact, truth, "masks")
    assert scores["map"] == scores["mar_100"] == 1 and scores["per_class"][:3] == [1, 1, 1]
    assert math.isnan(scores["per_class"][3])
    none = [{name: value[:0] for name, value in each.items()} for each in found]
    assert ours(none, truth, "boxes")["map"] == ours(none, truth, "boxes")["mar_100"] == 0
    assert math.isnan(AveragePrecision(2).scores()["map"])


def test_precision_at_recalls_by_hand():
    """Right, wrong, right of four objects: precision 1 up to recall 1/4, 2/3 up to 1/2, then nothing."""
    found = at_recalls(np.array([0.25, 0.25, 0.5]), np.array([1, 1 / 2, 2 / 3]))
    assert found.tolist() == [1] * 26 + [2 / 3] * 25 + [0] * 50


def test_processes_share_the_images(monkeypatch):
    """Two that saw every other image have together what one has that saw all."""
    from hamburger import distributed
    from hamburger.detection import average_precision

    found, truth = drawn(3)
    shares = [counted(found, truth, "masks", range(rank, len(found), 2)) for rank in (0, 1)]
    everyone = [dict(share.found) for share in shares]

    def gathered(into, own):
        into[:] = everyone

    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(average_precision.dist, "all_gather_object", gathered)
    for share in shares:
        share.gather()
        assert str(share.scores()) == str(ours(found, truth, "masks"))
