"""Training batches of stereo pairs: the same crop of both images and their disparity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.errors import OptionError, check_count, check_flag, check_positive
from hamburger.stereo.data.base import UNKNOWN, StereoSample, StereoSet
from hamburger.training.augment import View, place, tint
from hamburger.training.image_files import MEAN, STD, normalise
from hamburger.training.keyed_rng import Draws
from hamburger.training.loader import upload
from hamburger.training.packed_images import Gathered, Packed, Pixels


class StereoBatch(NamedTuple):
    """`left`, `right`: b 3 h w, float32, normalised.   `disparity`: b h w, float32, 0 where unknown.   `ids`: b"""

    left: Tensor
    right: Tensor
    disparity: Tensor
    ids: list[str]


def to_pixels(sample: StereoSample) -> Pixels:
    """h*w 3, int32: left colours, right colours, and the bits of the disparity."""
    h, w = sample.disparity.shape
    together = np.zeros((h, w, 3, 4), np.uint8)
    for side, image in enumerate((sample.left, sample.right)):
        together[..., side, :3] = np.moveaxis(image.numpy(), 0, -1)
    together[..., 2, :] = np.ascontiguousarray(sample.disparity.numpy(), np.float32)[..., None].view(np.uint8)
    return Pixels(torch.from_numpy(together).view(torch.int32).squeeze(-1).flatten(0, 1), (h, w))


class StereoBatches(Gathered[StereoSet, StereoBatch]):
    """`crop`: height and width that are cut, at a uniform place, pixel by pixel as they are.

    `flip`: half of the pairs upside down; mirroring would exchange the cameras. `photometric`: brightness, contrast and
    saturation of both images alike. Where a pair is smaller than the crop it lies on a ground of zeros (the mean
    colour), whose disparity is unknown.
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
            raise OptionError(f"StereoBatches: crop must be height and width, got {crop!r}")
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

    def read(self, index: int) -> Pixels:
        return to_pixels(self.dataset.read(index, occlusions=False))

    def view(self, draws: Draws, size: tuple[int, int]) -> View:
        """Six numbers are drawn whatever the options, so that one option does not shift another."""
        u = [draws.uniform() for _ in range(6)]
        top, left = (place(extent - side, v) for extent, side, v in zip(size, self.crop, u, strict=False))
        jitter = [self.photometric * (2 * v - 1) for v in u[3:]]
        return View(*size, top, left, self.flip and u[2] < 0.5, jitter[0], 1 + jitter[1], 1 + jitter[2])

    def cut(self, packed: Packed, indices: Sequence[int], draws: Sequence[Draws], ids: list[str]) -> StereoBatch:
        views = [self.view(each, packed.sizes[i]) for i, each in zip(indices, draws, strict=True)]
        device = packed.pixels.device
        rows = [(packed.starts[i], v.h, v.w, v.top, v.left, v.flip) for i, v in zip(indices, views, strict=True)]
        start, h, w, top, left, flip = upload(rows, device).T.unsqueeze(-1)  # each b 1
        y, x = (torch.arange(side, device=device) + first for side, first in zip(self.crop, (top, left), strict=True))
        inside = ((y >= 0) & (y < h))[:, :, None] & ((x >= 0) & (x < w))[:, None]
        y = torch.where(flip.bool(), h - 1 - y, y)
        y, x = (axis.clamp_min(0).minimum(size - 1) for axis, size in ((y, h), (x, w)))
        found = packed.pixels[(start + y * w)[:, :, None] + x[:, None]]  # b h w 3
        disparity = found[..., 2].view(torch.float32).masked_fill(~inside, UNKNOWN)
        one, other = (self._image(found[..., side], views) * inside[:, None] for side in range(2))
        return StereoBatch(one, other, disparity, ids)

    def _image(self, pixels: Tensor, views: Sequence[View]) -> Tensor:
        """b h w, int32   ->   b 3 h w"""
        colours = pixels.contiguous().unsqueeze(-1).view(torch.uint8)[..., :3].movedim(-1, 1)
        if self.photometric:
            colours = tint(colours.float(), views)
        return normalise(colours.contiguous(), self.mean, self.std)


# ----------------------------------------------------------------------------------------------------------------------
# Pairs at half, a third, ... of their size, for networks whose disparities do not reach far enough at full size.


ALIKE = 1.0  # pixels, at full size: disparities of one block that differ by more lie on both sides of an edge


def shrunk(sample: StereoSample, factor: int) -> StereoSample:
    """Blocks of factor x factor pixels become one: colours by their mean, disparities by the mean over `factor`.

    A block with an unknown disparity, or with an edge in it, is unknown; one that the other camera does not see whole
    is not seen. Rows and columns that fill no block are left out.
    """
    if factor == 1:
        return sample
    blocks = _blocks(sample.disparity, factor)
    low, high = blocks.amin(-1), blocks.amax(-1)
    whole = (low != UNKNOWN) & (high - low <= ALIKE)
    disparity = torch.where(whole, blocks.mean(-1) / factor, UNKNOWN)
    seen = None if sample.seen is None else _blocks(sample.seen, factor).all(-1)
    return StereoSample(_mean(sample.left, factor), _mean(sample.right, factor), disparity, seen)


def _blocks(values: Tensor, factor: int) -> Tensor:
    """h w   ->   h/factor w/factor factor^2"""
    return values.unfold(0, factor, factor).unfold(1, factor, factor).flatten(2)


def _mean(image: Tensor, factor: int) -> Tensor:
    return F.avg_pool2d(image.float(), factor).round().to(torch.uint8)
