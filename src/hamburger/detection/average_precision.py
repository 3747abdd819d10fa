"""Average precision of detections as COCO scores it, for boxes and for masks.

Objects are matched image by image, as soon as they are known: no image or mask is kept. In each image and class the
detections, the likeliest first and at most 100, take the free object that they overlap most, at each of ten thresholds
from 0.5 to 0.95. Objects of another size than the one asked for, and groups (crowd), are not counted: what is matched
with them is neither right nor wrong, nor is an unmatched detection of another size. Pooled over all images, the
precision at each recall is the best at that recall or beyond; the average is over 101 recalls, thresholds and classes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from hamburger import distributed

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
SIZES = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
MOST = (1, 10, 100)  # detections of a class in one image
EPS = np.finfo(np.float64).eps  # where neither hits nor misses have been seen yet

Array = npt.NDArray[Any]


class Found(NamedTuple):
    """Detections of one image, d each."""

    labels: Array
    scores: Array
    areas: Array


class Truth(NamedTuple):
    """Objects of one image, g each."""

    labels: Array
    areas: Array
    crowd: Array


class Matched(NamedTuple):
    """One class in one image. `scores`: d, falling.   `right`, `skipped`: sizes thresholds d.   `objects`: sizes"""

    scores: Array
    right: Array
    skipped: Array
    objects: Array


class AveragePrecision:
    """`update` with the overlaps of each image, `gather` over processes, then `scores`."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.found: dict[int, list[tuple[int, Matched]]] = defaultdict(list)  # of each class, (image, what was matched)

    def update(self, image: int, found: Found, truth: Truth, overlaps: Array) -> None:
        """The detections of image number `image`, and how much they overlap its objects.   overlaps: d g"""
        for label in np.union1d(found.labels, truth.labels).tolist():
            mine, theirs = np.flatnonzero(found.labels == label), np.flatnonzero(truth.labels == label)
            mine = mine[np.argsort(-found.scores[mine], kind="stable")][: MOST[-1]]
            right, skipped, objects = match(
                overlaps[np.ix_(mine, theirs)], found.areas[mine], truth.areas[theirs], truth.crowd[theirs]
            )
            self.found[label].append((image, Matched(found.scores[mine], right, skipped, objects)))

    def gather(self) -> None:
        """What all processes found; all must call this together."""
        if distributed.world() == 1:
            return
        every: list[Any] = [None] * distributed.world()
        dist.all_gather_object(every, dict(self.found))
        self.found = defaultdict(list)
        for each in every:
            for label, rows in each.items():
                self.found[label] += rows

    def scores(self) -> dict[str, Any]:
        """`map`, `map_50`, ..., `mar_100`, and `per_class`, the `map` of each; NaN where there are no objects."""
        precision, recall = (np.stack(each) for each in zip(*map(self._curves, range(self.classes)), strict=True))
        sizes = list(SIZES)  # precision: classes sizes thresholds recalls; recall: classes most sizes thresholds
        found = {
            "map": _mean(precision[:, 0]),
            "map_50": _mean(precision[:, 0, 0]),
            "map_75": _mean(precision[:, 0, 5]),
        }
        found |= {f"map_{name}": _mean(precision[:, i]) for i, name in enumerate(sizes) if i}
        found |= {f"mar_{most}": _mean(recall[:, i, 0]) for i, most in enumerate(MOST)}
        found |= {f"mar_{name}": _mean(recall[:, -1, i]) for i, name in enumerate(sizes) if i}
        return {**found, "per_class": [_mean(each[0]) for each in precision]}

    def _curves(self, label: int) -> tuple[Array, Array]:
        """Precision, sizes thresholds recalls, and the highest recall, most sizes thresholds; -1 without objects."""
        precision = -np.ones((len(SIZES), len(THRESHOLDS), len(RECALLS)))
        recall = -np.ones((len(MOST), len(SIZES), len(THRESHOLDS)))
        rows = [row for _, row in sorted(self.found[label], key=lambda found: found[0])]
        counts = np.sum([row.objects for row in rows], axis=0) if rows else np.zeros(len(SIZES))
        for k in np.flatnonzero(counts).tolist():
            objects = counts[k]
            for m, most in enumerate(MOST):
                scores = np.concatenate([row.scores[:most] for row in rows])
                order = np.argsort(-scores, kind="stable")
                right, skipped = (
                    np.concatenate([each[k, :, :most] for each in kind], 1)[:, order]
                    for kind in ([row.right for row in rows], [row.skipped for row in rows])
                )
                hits = (right & ~skipped).cumsum(1).astype(np.float64)
                misses = (~right & ~skipped).cumsum(1)
                for t in range(len(THRESHOLDS)):
                    recall[m, k, t] = hits[t, -1] / objects if len(order) else 0
                    if most == MOST[-1]:
                        precision[k, t] = at_recalls(hits[t] / objects, hits[t] / (hits[t] + misses[t] + EPS))
        return precision, recall


def at_recalls(recall: Array, precision: Array) -> Array:
    """The best precision at each of the 101 recalls or beyond, 0 where that is never reached."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    where = np.searchsorted(recall, RECALLS, side="left")
    return np.append(best, 0.0)[where]


def match(overlaps: Array, areas: Array, truth_areas: Array, crowd: Array) -> tuple[Array, Array, Array]:
    """Detections d, the likeliest first, with objects g: right and skipped, sizes thresholds d; objects, sizes."""
    d, g = overlaps.shape
    bounds = np.array(list(SIZES.values()))[:, :, None]  # sizes 2 1
    aside = crowd | (truth_areas < bounds[:, 0]) | (truth_areas > bounds[:, 1])  # sizes g
    outside = (areas < bounds[:, 0]) | (areas > bounds[:, 1])  # sizes d
    right = np.zeros((len(SIZES), len(THRESHOLDS), d), np.bool_)
    skipped = np.zeros_like(right)
    free = np.ones((len(SIZES), len(THRESHOLDS), g), np.bool_)
    limits = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    for i in range(d if g else 0):
        fits = free & (overlaps[i] >= limits)  # sizes thresholds g
        # an object that counts comes before one that does not, whatever they overlap; of equals the last
        worth = np.where(fits, overlaps[i] + 2 * ~aside[:, None], -1.0)
        best = g - 1 - worth[..., ::-1].argmax(-1)  # sizes thresholds
        right[..., i] = fits.any(-1)
        skipped[..., i] = right[..., i] & np.take_along_axis(aside, best, 1)
        taken = (np.arange(g) == best[..., None]) & right[..., i, None] & ~crowd
        free &= ~taken
    skipped |= ~right & outside[:, None]
    return right, skipped, (~aside).sum(1)


def _mean(values: Array) -> float:
    counted = values[values > -1]
    return float(counted.mean()) if counted.size else float("nan")


def box_overlaps(found: Tensor, truth: Tensor, crowd: Tensor) -> Array:
    """Intersection over union, of a group over the detection alone.   d 4, g 4   ->   d g"""
    found, truth = found.double(), truth.double()
    low, high = torch.maximum(found[:, None, :2], truth[:, :2]), torch.minimum(found[:, None, 2:], truth[:, 2:])
    shared = (high - low).clamp_min(0).prod(2)
    return _ratio(shared, box_areas(found), box_areas(truth), crowd)


def box_areas(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:].double() - boxes[:, :2].double()).prod(1)


def mask_overlaps(found: Tensor, truth: Tensor, crowd: Tensor) -> Array:
    """The same of masks.   d h w, g h w   ->   d g"""
    a, b = found.flatten(1).float(), truth.flatten(1).float()  # whole numbers below 2^24: exact
    return _ratio((a @ b.T).double(), a.sum(1).double(), b.sum(1).double(), crowd)


def _ratio(shared: Tensor, found: Tensor, truth: Tensor, crowd: Tensor) -> Array:
    union = torch.where(crowd, found[:, None].expand_as(shared), found[:, None] + truth - shared)
    return torch.where(union > 0, shared / union, 0.0).cpu().numpy()
