"""Random scale, crop and flip of a whole batch, from packed bytes on any device.

For each sample: resize image and label to `round(h * scale)` by `round(w * scale)`, the scale uniform in `scales`;
mirror; cut a square of `crop` pixels at a uniform position; normalise. Where the resized image is smaller than the
crop, it is placed at a uniform position inside, padded with zeros (the mean colour) and label 255.

All of it is one affine map per sample, and one gather from the bytes instead of a chain of images: bilinear for images,
nearest for labels, pixel centres at half numbers (`align_corners=False`), edges repeated. It does not use
`grid_sample`, whose coordinates in -1 ... 1 round: here a crop at scale 1 returns the image's exact bytes. As in the
usual pipelines, shrinking has no antialiasing beyond bilinear; down to scale 0.5 no pixel is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.devices import to_device
from hamburger.training.datasets import IGNORE, Sample
from hamburger.training.image_files import normalise, upload
from hamburger.training.loader import BatchLoader, KeyedRng, Part, Set


class PackedSample(NamedTuple):
    """One sample. `pixels`: h*w (and perhaps more axes), int32; of an image the four bytes red, green, blue, label."""

    pixels: Tensor
    size: tuple[int, int]  # h, w

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    def to(self, device: torch.device) -> PackedSample:
        return PackedSample(self.pixels.to(device), self.size)


class PackedImages(NamedTuple):
    """Many samples. `pixels`: total ..., int32, one after another.   `starts`: where each begins.   `sizes`: h, w"""

    pixels: Tensor
    starts: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]


def to_pixels(sample: Sample) -> PackedSample:
    """A sample packed into int32. Uses numpy: in a reading thread every torch call would start a thread pool."""
    h, w = sample.label.shape
    together = np.empty((h, w, 4), np.uint8)
    for channel, plane in enumerate((*sample.image.numpy(), sample.label.numpy())):
        together[..., channel] = plane
    return PackedSample(torch.from_numpy(together).view(torch.int32).flatten(), (h, w))


def join(samples: Iterable[PackedSample]) -> PackedImages:
    pixels, sizes = zip(*samples, strict=True)
    starts = accumulate(map(len, pixels[:-1]), initial=0)
    return PackedImages(torch.cat(pixels), tuple(starts), sizes)


class PackedImageLoader(BatchLoader[Set, PackedSample, PackedImages, Part], Generic[Set, Part]):
    """A batch loader whose samples are packed images."""

    def hold(self, samples: Iterable[PackedSample]) -> PackedImages:
        packed = join(samples)
        return packed._replace(pixels=to_device(packed.pixels, self.device))


class AugmentedView(NamedTuple):
    """The view of one sample: resized to `h` x `w`, mirrored or not, and cut at `top`, `left` (negative: padding)."""

    h: int
    w: int
    top: int
    left: int
    flip: bool
    brightness: float = 0.0  # added, as a fraction of white
    contrast: float = 1.0
    saturation: float = 1.0


def draw_view(
    rng: KeyedRng,
    size: tuple[int, int],
    *,
    crop: int,
    scales: Sequence[float],
    flip: bool,
    photometric: float = 0.0,
) -> AugmentedView:
    """Draw one sample's view. Always draws seven numbers, so that one option does not change the draws of another."""
    u = [rng.uniform() for _ in range(7)]
    scale = scales[0] + (scales[1] - scales[0]) * u[0]
    h, w = (max(1, round(side * scale)) for side in size)
    top, left = (random_offset(extent - crop, v) for extent, v in ((h, u[1]), (w, u[2])))
    jitter = [photometric * (2 * v - 1) for v in u[4:]]
    return AugmentedView(h, w, top, left, flip and u[3] < 0.5, jitter[0], 1 + jitter[1], 1 + jitter[2])


def random_offset(spare: int, u: float) -> int:
    """A whole number from 0 to `spare`, or from `spare` to 0 where the crop is larger than the image."""
    return min(0, spare) + int(u * (abs(spare) + 1))


def render(
    packed: PackedImages,
    indices: Sequence[int],
    views: Sequence[AugmentedView],
    *,
    crop: int,
) -> tuple[Tensor, Tensor]:
    """b samples, each in its view   ->   images b 3 crop crop, float32, and labels b crop crop, int64"""
    device = packed.pixels.device
    rows = [
        (packed.starts[i], *packed.sizes[i], v.h, v.w, v.top, v.left, v.flip)
        for i, v in zip(indices, views, strict=True)
    ]
    start, h, w, h_new, w_new, top, left, flip = upload(rows, device).T.unsqueeze(-1)  # each b 1
    along = torch.arange(crop, device=device)
    # mirrored after resizing: count columns from the right
    y = along + top
    x = along + left
    x = torch.where(flip.bool(), w_new - 1 - x, x)
    inside = ((y >= 0) & (y < h_new))[:, :, None] & ((x >= 0) & (x < w_new))[:, None]
    y_near, y_low, y_high, y_share = interpolation_taps(y, h, h_new)
    x_near, x_low, x_high, x_share = interpolation_taps(x, w, w_new)

    def bytes_at(rows: Tensor, columns: Tensor) -> Tensor:
        """b crop crop 4"""
        where = (start + rows * w)[:, :, None] + columns[:, None]
        return packed.pixels[where].unsqueeze(-1).view(torch.uint8)

    labels = bytes_at(y_near, x_near)[..., 3].long()
    across = x_share[:, None, :, None]
    upper = torch.lerp(bytes_at(y_low, x_low)[..., :3].float(), bytes_at(y_low, x_high)[..., :3].float(), across)
    lower = torch.lerp(bytes_at(y_high, x_low)[..., :3].float(), bytes_at(y_high, x_high)[..., :3].float(), across)
    colours = torch.lerp(upper, lower, y_share[:, :, None, None]).movedim(-1, 1)
    if any((v.brightness, v.contrast, v.saturation) != (0.0, 1.0, 1.0) for v in views):
        colours = jitter_colours(colours, views)
    images = normalise(colours.contiguous()) * inside[:, None]
    return images, labels.masked_fill_(~inside, IGNORE)


def interpolation_taps(position: Tensor, size: Tensor, resized: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positions in the resized image, b crop   ->   nearest, lower, upper neighbour in the file; the upper's share"""
    last = size - 1
    centre = (position + 0.5) * (size / resized)
    nearest = centre.floor().long().clamp_min(0).minimum(last)
    exact = (centre - 0.5).clamp_min(0).minimum(last)
    lower = exact.floor().long()
    return nearest, lower, (lower + 1).minimum(last), (exact - lower).float()


def jitter_colours(colours: Tensor, views: Sequence[AugmentedView]) -> Tensor:
    """Saturation about each pixel's grey, contrast about middle grey, then brightness.   b 3 h w, 0 ... 255"""
    factors = upload([(v.brightness, v.contrast, v.saturation) for v in views], colours.device)
    brightness, contrast, saturation = factors.float().T[..., None, None, None]
    grey = colours.mean(1, keepdim=True)
    colours = grey + (colours - grey) * saturation
    return ((colours - 127.5) * contrast + 127.5 + 255 * brightness).clamp(0, 255)
