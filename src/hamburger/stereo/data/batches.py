"""Training batches of stereo pairs: the same crop of both images and of the disparity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import OptionError, check_count, check_flag, check_positive
from hamburger.stereo.data.base import UNKNOWN, StereoSample, StereoSet
from hamburger.training.augment import (
    AugmentedView,
    PackedImageLoader,
    PackedImages,
    PackedSample,
    jitter_colours,
    random_offset,
)
from hamburger.training.image_files import MEAN, STD, normalise, upload
from hamburger.training.keyed_rng import KeyedRng


class StereoBatch(NamedTuple):
    """b crops of pairs."""

    left: Tensor  # b 3 h w, float32, normalised
    right: Tensor  # b 3 h w, float32, normalised
    disparity: Tensor  # b h w, float32, 0 where unknown
    ids: list[str]


def pack_sample(sample: StereoSample) -> PackedSample:
    """One pair as a single tensor, h*w 3, int32: left colours, right colours, and the bits of the disparity."""
    h, w = sample.disparity.shape
    packed = np.zeros((h, w, 3, 4), np.uint8)
    for side, image in enumerate((sample.left, sample.right)):
        packed[..., side, :3] = np.moveaxis(image.numpy(), 0, -1)
    packed[..., 2, :] = np.ascontiguousarray(sample.disparity.numpy(), np.float32)[..., None].view(np.uint8)
    return PackedSample(torch.from_numpy(packed).view(torch.int32).squeeze(-1).flatten(0, 1), (h, w))


class StereoBatches(PackedImageLoader[StereoSet, StereoBatch]):
    """Random crops of pairs, without resizing.

    - `crop`: height and width, at a uniformly random place; a smaller pair is padded with zeros (the mean colour) and
      unknown disparities
    - `flip`: turn half of the pairs upside down; mirroring would exchange the cameras
    - `photometric`: strength of brightness, contrast and saturation changes, the same for both images
    """

    def __init__(
        self,
        dataset: StereoSet,
        *,
        batch: int,
        crop: tuple[int, int],
        flip: bool = False,
        photometric: float = 0.0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        workers: int = 0,
        resident: str = "auto",
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        loaded: Callable[[], object] | None = None,
    ) -> None:
        if len(crop) != 2:
            raise OptionError(f"StereoBatches: crop must be height and width (got {crop!r})")
        for side in crop:
            check_count("StereoBatches", "each side of the crop", side, least=1)
        check_flag("StereoBatches", "flip", flip)
        check_positive("StereoBatches", "photometric", photometric, zero=True, most=0.9)
        self.crop, self.flip, self.photometric = crop, flip, float(photometric)
        self.mean, self.std = tuple(mean), tuple(std)
        super().__init__(
            dataset,
            batch=batch,
            seed=seed,
            device=device,
            rank=rank,
            world=world,
            accumulate=accumulate,
            workers=workers,
            resident=resident,
            loaded=loaded,
        )

    def read(self, index: int) -> PackedSample:
        return pack_sample(self.dataset.read(index, occlusions=False))

    def view(self, draws: KeyedRng, size: tuple[int, int]) -> AugmentedView:
        """A random view. Six numbers are drawn whatever the options, so that one option does not affect another."""
        u = [draws.uniform() for _ in range(6)]
        top, left = (random_offset(extent - side, v) for extent, side, v in zip(size, self.crop, u, strict=False))
        jitter = [self.photometric * (2 * v - 1) for v in u[3:]]
        return AugmentedView(*size, top, left, self.flip and u[2] < 0.5, jitter[0], 1 + jitter[1], 1 + jitter[2])

    def cut(
        self, packed: PackedImages, indices: Sequence[int], draws: Sequence[KeyedRng], ids: list[str]
    ) -> StereoBatch:
        views = [self.view(each, packed.sizes[i]) for i, each in zip(indices, draws, strict=True)]
        device = packed.pixels.device
        rows = [(packed.starts[i], v.h, v.w, v.top, v.left, v.flip) for i, v in zip(indices, views, strict=True)]
        start, h, w, top, left, flip = upload(rows, device).T.unsqueeze(-1)  # each b 1
        y, x = (torch.arange(side, device=device) + first for side, first in zip(self.crop, (top, left), strict=True))
        inside = ((y >= 0) & (y < h))[:, :, None] & ((x >= 0) & (x < w))[:, None]
        y = torch.where(flip.bool(), h - 1 - y, y)
        y, x = (axis.clamp_min(0).minimum(size - 1) for axis, size in ((y, h), (x, w)))
        pixels = packed.pixels[(start + y * w)[:, :, None] + x[:, None]]  # b h w 3
        disparity = pixels[..., 2].view(torch.float32).masked_fill(~inside, UNKNOWN)
        left_image, right_image = (self._image(pixels[..., side], views) * inside[:, None] for side in range(2))
        return StereoBatch(left_image, right_image, disparity, ids)

    def _image(self, pixels: Tensor, views: Sequence[AugmentedView]) -> Tensor:
        """b h w, int32   ->   b 3 h w"""
        colours = pixels.contiguous().unsqueeze(-1).view(torch.uint8)[..., :3].movedim(-1, 1)
        if self.photometric:
            colours = jitter_colours(colours.float(), views)
        return normalise(colours.contiguous(), self.mean, self.std)


# -- shrinking: for networks whose largest disparity is too small at full size ----------------------------------------

MAX_BLOCK_RANGE = 1.0  # pixels at full size: a block whose disparities differ by more contains an edge


def shrink_sample(sample: StereoSample, factor: int) -> StereoSample:
    """The pair at 1 / factor of its size: each block of factor x factor pixels becomes one.

    Colours are means, disparities are means divided by `factor`. A block with an unknown disparity or an edge is
    unknown; a block is seen only if the other camera sees all of it. Rows and columns that fill no block are left out.
    """
    if factor == 1:
        return sample
    blocks = _cut_blocks(sample.disparity, factor)
    low, high = blocks.amin(-1), blocks.amax(-1)
    whole = (low != UNKNOWN) & (high - low <= MAX_BLOCK_RANGE)
    disparity = torch.where(whole, blocks.mean(-1) / factor, UNKNOWN)
    seen = None if sample.seen is None else _cut_blocks(sample.seen, factor).all(-1)
    return StereoSample(_shrink_image(sample.left, factor), _shrink_image(sample.right, factor), disparity, seen)


def _cut_blocks(values: Tensor, factor: int) -> Tensor:
    """h w   ->   h/factor w/factor factor^2"""
    return values.unfold(0, factor, factor).unfold(1, factor, factor).flatten(2)


def _shrink_image(image: Tensor, factor: int) -> Tensor:
    return F.avg_pool2d(image.float(), factor).round().to(torch.uint8)
