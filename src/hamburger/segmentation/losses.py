"""Segmentation losses. Pixels labelled 255 are ignored; means are taken over the global batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.contexts.psp import resize_from_grid
from hamburger.distributed import global_mean
from hamburger.errors import InputError
from hamburger.tensors import full_precision, widen

IGNORE = 255


def resize_logits(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize logits bilinearly with aligned corners, as in the original networks.   b k h w   ->   b k H W, >= float32

    Half precision is converted to float32 first: each gradient is a sum over about a thousand pixels, which half
    precision cannot represent.
    """
    wide = widen(logits)
    if tuple(wide.shape[-2:]) == tuple(size):
        return wide
    if wide.device.type != "cpu" and torch.is_grad_enabled():
        # on GPUs torch's gradient of this resize is slow and not deterministic; two matrix products give the same
        # values with a fast, deterministic gradient
        with full_precision(wide.device.type):
            return resize_from_grid(wide, size)
    return F.interpolate(wide, size=size, mode="bilinear", align_corners=True)


def check_labels(call: str, target: object) -> None:
    """Raise unless the labels are a tensor of int64."""
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        kind = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise InputError(f"{call}: the labels must be a tensor of torch.int64, got {kind}; pass labels.long()")


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the labelled pixels of all processes.   logits: b k h w    target: b H W, 255: unlabelled

    Logits are resized to the labels. A batch without any label gives zero, not NaN. DDP's mean of gradients gives the
    result of a single process on the global batch, even if processes have different numbers of labelled pixels.
    """
    check_labels("cross_entropy", target)
    height, width = target.shape[-2:]
    summed = F.cross_entropy(resize_logits(logits, (height, width)), target, ignore_index=IGNORE, reduction="sum")
    return global_mean(summed, (target != IGNORE).sum())
