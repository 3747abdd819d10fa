"""From bytes to what a network pretrained on ImageNet expects."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hamburger.data.upload import upload

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def normalise(image: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """... 3 h w, 0 ... 255   ->   the same shape, float32, (x / 255 - mean) / std"""
    centre, spread = (upload(values, image.device).view(3, 1, 1) for values in (mean, std))
    return (image.float() / 255 - centre) / spread
