"""Pixels and feature maps on one grid: what an image must be padded to before its logits can be drawn over it.

Where convolutions are padded on both sides, position j of a map of stride s was made around pixel s j. Resizing a map
of f positions with its corners aligned puts position j on pixel j (h - 1) / (f - 1). Both agree where h is
s (f - 1) + 1, as in the crops of 321 and 513 pixels that such networks are trained on; at any other size the prediction
would be stretched, by up to s - 1 pixels at the right edge. So images are padded to the next size that fits, and the
logits are cut back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from hamburger.backbones.base import Backbone
from hamburger.layers.context.blocks import exporting


class Grid(NamedTuple):
    """`height` x `width`: the size that fits an image of h x w; logits are drawn on it with their corners aligned."""

    h: int
    w: int
    height: int
    width: int
    stride: int
    before: int = 0  # zeros above and to the left
    after: int = 0  # zeros below and to the right, beyond the fitting size

    @classmethod
    def of(cls, backbone: Backbone, h: int, w: int) -> Grid:
        stride = max(backbone.strides)
        if backbone.corners is None:  # an encoder of one size: nothing can be added
            return cls(h, w, h, w, stride)
        height, width = h + (1 - h) % stride, w + (1 - w) % stride
        if backbone.corners:
            return cls(h, w, height, width, stride)
        # Patches: half a stride before the image moves their middles onto the corners, to half a pixel, and one patch
        # more at the end covers the last corner.
        before = stride // 2
        return cls(h, w, height, width, stride, before, stride - 1 - before)

    def fit(self, x: Tensor) -> Tensor:
        """Zeros around the image: the mean colour, once normalised.   b 3 h w   ->   b 3 h' w'"""
        before, after = self.before, self.after
        right, bottom = after + self.width - self.w, after + self.height - self.h
        if exporting():
            # A graph for all sizes must not ask whether there is anything to pad or to cut: here there always is.
            padded = F.pad(x, (before, after + self.stride, before, after + self.stride))
            return padded[..., : self.h + before + bottom, : self.w + before + right]
        if not (before or right or bottom):
            return x
        return F.pad(x, (before, right, before, bottom))

    def cut(self, logits: Tensor) -> Tensor:
        """b k height width   ->   b k h w"""
        if exporting():
            logits = F.pad(logits, (0, 1, 0, 1))
        return logits[..., : self.h, : self.w]
