"""A scene as one training step sees it: resized, mirrored and cut to a square, with the boxes of what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.data.augment import View, taps
from hamburger.data.detection.base import Scene, boxes_of
from hamburger.data.normalise import MEAN
from hamburger.data.upload import upload

LEAST = 4  # pixels of an object that are still an object


class Seen(NamedTuple):
    """`image`: 3 h w in [0, 1].   Of m objects `boxes`: m 4, `labels`: m, 0 ... k - 1, `masks`: m h w"""

    image: Tensor
    boxes: Tensor
    labels: Tensor
    masks: Tensor


def see(scene: Scene, view: View, *, crop: int, pad: bool = True, ground: Sequence[float] = MEAN) -> Seen:
    """Images are bilinear and masks the nearest pixel; groups, and objects of which nothing is left, are left out.

    Boxes are those of the masks that are seen. Beyond the image lies the colour `ground`, or nothing without `pad`.
    """
    device, (h, w) = scene.image.device, scene.image.shape[-2:]
    y, x = (
        torch.arange(begin if pad else max(0, begin), begin + crop if pad else min(size, begin + crop), device=device)
        for begin, size in ((view.top, view.h), (view.left, view.w))
    )
    if view.flip:  # mirrored after resizing: counted from the other side
        x = view.w - 1 - x
    inside = ((y >= 0) & (y < view.h))[:, None] & ((x >= 0) & (x < view.w))
    sizes = upload([h, view.h, w, view.w], device)
    y_near, y_low, y_high, y_share = taps(y, sizes[0], sizes[1])
    x_near, x_low, x_high, x_share = taps(x, sizes[2], sizes[3])
    upper, lower = scene.image[:, y_low].float(), scene.image[:, y_high].float()  # 3 crop w
    upper, lower = (torch.lerp(line[..., x_low], line[..., x_high], x_share) for line in (upper, lower))
    colours = torch.lerp(upper, lower, y_share[:, None]) / 255
    image = torch.where(inside, colours, upload(list(ground), device)[:, None, None])
    masks = scene.masks[:, y_near][..., x_near] & inside
    kept = ~scene.crowd & (masks.flatten(1).sum(1) >= LEAST)
    masks = masks[kept]
    return Seen(image, boxes_of(masks), scene.labels[kept], masks)
