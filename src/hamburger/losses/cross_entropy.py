"""Cross-entropy per pixel, averaged as one process with the joined batch would average it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hamburger.losses.mean import joined_mean

IGNORE = 255


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the labelled pixels of all processes.   logits: b k h w    target: b H W, 255 where unlabelled

    Logits are resized to the labels (bilinear, corners aligned, as the original networks have it). A batch without any
    label gives zero rather than NaN. Processes that hold different numbers of labelled pixels still average, through
    DDP's mean of gradients, to what one process would compute.
    """
    if logits.shape[-2:] != target.shape[-2:]:
        logits = F.interpolate(logits, size=target.shape[-2:], mode="bilinear", align_corners=True)
    summed = F.cross_entropy(logits.float(), target, ignore_index=IGNORE, reduction="sum")
    return joined_mean(summed, (target != IGNORE).sum())
