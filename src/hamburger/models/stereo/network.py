"""A compact cost-volume network: shared features, a volume, 3-D aggregation, soft-argmin.

The parts are those of GC-Net (soft-argmin), PSMNet (hourglass) and GwcNet (correlation by groups), each in its smallest
form; disparities are found at a quarter of the resolution, and each pixel chooses among its coarse neighbours.
"""

from __future__ import annotations

from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import ShapeError
from hamburger.layers.norm import BatchNorm2d
from hamburger.losses.disparity import smooth_l1
from hamburger.models.info import Info
from hamburger.models.stereo.volume import concatenation, correlation, soft_argmin, upsampled
from hamburger.shapes import check_tensor

STRIDE = 4  # of the features and of the volume
COARSEST = 16  # stride at the bottom of the hourglass: sizes and disparities are multiples of it
DILATIONS = (1, 1, 2, 4)
JOINED = 8  # channels of either side in a volume by concatenation


class Block(nn.Module):
    """Two convolutions and a skip."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*plane(width, width, dilation=dilation), *plane(width, width, dilation=dilation)[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.body(x)).relu()


def plane(c: int, d: int, *, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """3 x 3, norm, ReLU."""
    conv = nn.Conv2d(c, d, 3, stride=stride, padding=dilation, dilation=dilation, bias=False)
    return [conv, BatchNorm2d(d), nn.ReLU()]


def solid(c: int, d: int, *, stride: int = 1) -> nn.Sequential:
    """3 x 3 x 3, norm, ReLU."""
    return nn.Sequential(nn.Conv3d(c, d, 3, stride=stride, padding=1, bias=False), nn.BatchNorm3d(d), nn.ReLU())


def finer(c: int, d: int) -> nn.Sequential:
    """Twice as fine in all three directions, norm."""
    return nn.Sequential(
        nn.ConvTranspose3d(c, d, 3, stride=2, padding=1, output_padding=1, bias=False), nn.BatchNorm3d(d)
    )


class Features(nn.Module):
    """b 3 h w   ->   b c h/4 w/4.   A context in the features follows `body`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = max(8, width // 2)
        self.stem = nn.Sequential(*plane(3, half, stride=2), *plane(half, half), *plane(half, width, stride=2))
        self.body = nn.Sequential(*(Block(width, dilation) for dilation in DILATIONS))
        self.out = nn.Conv2d(width, width, 1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features to be matched, and those before their last layer."""
        y = self.body(self.stem(x))
        return self.out(y), y


class Aggregation(nn.Module):
    """A small hourglass over the volume.   b c d h w   ->   costs b d h w.   A context in it follows `coarse`."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(solid(channels, width), solid(width, width))
        self.coarse = nn.Sequential(solid(width, 2 * width, stride=2), solid(2 * width, 2 * width))
        self.coarsest = nn.Sequential(solid(2 * width, 2 * width, stride=2), solid(2 * width, 2 * width))
        self.to_coarse, self.to_fine = finer(2 * width, 2 * width), finer(2 * width, width)
        self.out = nn.Sequential(solid(width, width), nn.Conv3d(width, 1, 3, padding=1, bias=False))

    def forward(self, volume: Tensor) -> Tensor:
        fine = self.first(volume)
        coarse = self.coarse(fine)
        coarse = (coarse + self.to_coarse(self.coarsest(coarse))).relu()
        return self.out((fine + self.to_fine(coarse)).relu()).squeeze(1)


class StereoNet(nn.Module):
    """left b 3 h w, right b 3 h w   ->   disparity b h w in pixels, for any h and w.

    With the true disparity (b h w, 0 where unknown) the answer is the loss instead, by name. Images are padded to the
    right and below, inside. `config` holds the keywords of `create_stereo`, `info` what its weights file says.
    """

    config: dict[str, Any] | None
    info: Info | None

    def __init__(
        self,
        *,
        width: int,
        volume: str,
        groups: int,
        volume_width: int,
        max_disparity: int,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.volume, self.groups, self.max_disparity = volume, groups, max_disparity
        self.features = Features(width)
        self.join = nn.Conv2d(width, JOINED, 1, bias=False) if volume == "concatenation" else None
        self.aggregation = Aggregation(groups if self.join is None else 2 * JOINED, volume_width)
        self.fineness = nn.Sequential(*plane(width, width), nn.Conv2d(width, 9 * STRIDE**2, 1))
        self.config, self.info = config, None

    @overload
    def forward(self, left: Tensor, right: Tensor) -> Tensor: ...
    @overload
    def forward(self, left: Tensor, right: Tensor, target: Tensor) -> dict[str, Tensor]: ...
    def forward(self, left: Tensor, right: Tensor, target: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        _check(left, right, target)
        h, w = left.shape[-2:]
        # as one batch: whatever is put into the features then sees both images in one call
        matched, seen = self.features(F.pad(torch.cat([left, right]), (0, -w % COARSEST, 0, -h % COARSEST)))
        # not by chunk(), for which an exporter would have to know that b is not odd, or 0
        costs = self.aggregation(self._volume(*matched.unflatten(0, (2, -1))))
        scores = self.fineness(seen.unflatten(0, (2, -1))[0])
        disparity = upsampled(STRIDE * soft_argmin(costs), scores, STRIDE)[..., :h, :w]
        if target is None:
            return disparity
        return {"smooth_l1": smooth_l1(disparity, target, most=self.max_disparity)}

    def _volume(self, left: Tensor, right: Tensor) -> Tensor:
        steps = self.max_disparity // STRIDE
        if self.join is None:
            return correlation(left, right, disparities=steps, groups=self.groups)
        return concatenation(self.join(left), self.join(right), disparities=steps)


def _check(left: Tensor, right: Tensor, target: Tensor | None) -> None:
    for name, image in (("left", left), ("right", right)):
        check_tensor("StereoNet", f"the {name} images", image)
        if image.dim() != 4 or image.shape[1] != 3 or 0 in image.shape:
            raise ShapeError(f"StereoNet: the {name} images must be (b, 3, h, w), got {tuple(image.shape)}")
    if left.shape != right.shape:
        raise ShapeError(
            f"StereoNet: left {tuple(left.shape)} and right {tuple(right.shape)} must have one size, as rectified "
            "pairs have"
        )
    if target is not None and target.shape != (left.shape[0], *left.shape[2:]):
        raise ShapeError(
            f"StereoNet: the disparities must be (b, h, w) of the images {tuple(left.shape)}, got {tuple(target.shape)}"
        )
