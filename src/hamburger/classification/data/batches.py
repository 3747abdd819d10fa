"""Training batches of images and labels; `training/loader.py` says which images a step sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.classification.data.base import ImageSet
from hamburger.devices import to_device
from hamburger.training.image_files import upload
from hamburger.training.loader import BatchLoader, view_rng


class ImageBatch(NamedTuple):
    """`images`: b 3 size size in [-1, 1], float32.   `labels`: b"""

    images: Tensor
    labels: Tensor


def to_model_input(pixels: Tensor) -> Tensor:
    """Scale images for a network.   b 3 h w, uint8   ->   b 3 h w in [-1, 1]"""
    return pixels.float() / 127.5 - 1


def crop_padded(pixels: Tensor, padding: int, corners: Tensor) -> Tensor:
    """Pad with black and crop the original size at each image's corner (row, column).   b c h w, b 2   ->   b c h w"""
    (b, c, h, w), device = pixels.shape, pixels.device
    rows, columns = (corners[:, i, None] + torch.arange(n, device=device) for i, n in enumerate((h, w)))
    padded = F.pad(pixels, (padding,) * 4).flatten(2)
    positions = (rows * (w + 2 * padding))[:, :, None] + columns[:, None]  # b h w
    return padded.gather(2, positions.reshape(b, 1, -1).expand(-1, c, -1)).unflatten(2, (h, w))


class ImageBatches(BatchLoader[ImageSet, Tensor, Tensor, ImageBatch]):
    """Whole images. `padding`: add so many black pixels on every side, then crop the original size at random.

    The other options are those of `BatchLoader`.
    """

    gpu_share = 0.5  # nothing is concatenated

    def __init__(self, images: ImageSet, *, flip: bool = False, padding: int = 0, **options: Any) -> None:
        self.flip, self.padding = flip, padding
        super().__init__(images, **options)

    def read(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self.dataset.images[index]))

    def hold(self, samples: Iterable[Tensor]) -> Tensor:
        return to_device(torch.stack(list(samples)), self.device)

    def hold_all(self) -> Tensor:
        return torch.from_numpy(np.array(self.dataset.images)).to(self.device)

    def cut(self, held: Tensor, indices: Sequence[int], step: int, places: Sequence[int], ids: list[int]) -> ImageBatch:
        pixels = held[upload(indices, self.device)]
        if self.padding:
            corners = view_rng(self.seed, step, 1).below(2 * self.padding + 1, 2 * self.batch)
            pixels = crop_padded(pixels, self.padding, upload(corners.reshape(-1, 2)[places], self.device))
        images = to_model_input(pixels)
        if self.flip:
            mirrored = upload(view_rng(self.seed, step, 0).below(2, self.batch)[places] == 1, self.device)
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return ImageBatch(images, upload(self.dataset.labels[ids], self.device))
