"""Cross-entropy per pixel, averaged as one process with the joined batch would average it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hamburger.losses.mean import joined_mean
from hamburger.losses.pixels import IGNORE, to_pixels


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the labelled pixels of all processes.   logits: b k h w    target: b H W, 255 where unlabelled

    Logits are resized to the labels by `to_pixels`. A batch without any label gives zero rather than NaN. Processes
    that hold different numbers of labelled pixels still average, through DDP's mean of gradients, to what one process
    would compute.
    """
    height, width = target.shape[-2:]
    summed = F.cross_entropy(to_pixels(logits, (height, width)), target, ignore_index=IGNORE, reduction="sum")
    return joined_mean(summed, (target != IGNORE).sum())
