"""Stereo data: the interface of a set of image pairs, its check before training, and training batches.

`files.py` reads pairs, `layouts.py` finds them in the folders of Middlebury and SceneFlow, `planes.py` generates pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hamburger.registry import Registry
from hamburger.training.augment import (
    AugmentedView,
    PackedImageLoader,
    PackedImages,
    PackedSample,
    jitter_colours,
    random_offset,
)
from hamburger.training.datasets import Row, SampleSet, create_from_registry, raise_problems
from hamburger.training.image_files import normalise, upload
from hamburger.training.loader import KeyedRng

UNKNOWN = 0.0  # as a disparity: 0 would be a point infinitely far away, which no such set measures


class StereoSample(NamedTuple):
    """One rectified pair."""

    left: Tensor  # 3 h w, uint8, RGB
    right: Tensor  # 3 h w, uint8, RGB
    disparity: Tensor  # h w, float32, pixels, 0 where unknown
    seen: Tensor | None = None  # h w, bool: the right camera sees the left pixel too; None if unknown or not requested


class StereoSet(SampleSet[StereoSample]):
    """One split of a set of pairs.

    `shrink`: images are smaller than the originals by this factor, and so are disparities and their errors.
    """

    shrink: int = 1

    def read(self, index: int, *, occlusions: bool = True) -> StereoSample:
        """The i-th pair, with `seen` only if `occlusions`: training does not need it, and it may cost a file."""
        raise NotImplementedError

    def inspect(self, after: Callable[[], object] = lambda: None) -> list[Row]:
        """For each pair `problem`, `h`, `w`, `known` and `largest`; without some where a file cannot be read.

        `problem` is None or has one line per defect. `after` is called once per pair.
        """
        rows = []
        for index in range(len(self)):
            disparity = self.read(index, occlusions=False).disparity.numpy()
            rows.append({"problem": None, **describe_disparity(disparity)})
            after()
        return rows


# constructors take (split, root=..., **options); generated sets take no root
stereo_sets: Registry[StereoSet] = Registry("stereo set")


def create_stereo_set(name: str, split: str, root: str | Path | None = None, **options: Any) -> StereoSet:
    """The named set's split. `root` is the folder of a set in files; a generated set takes none."""
    return create_from_registry(stereo_sets, name, split, root, **options)


# -- checks before training --------------------------------------------------------------------------------------------


@dataclass
class StereoFindings:
    """What an inspection of a stereo set found."""

    problems: list[str]
    known: float = 0.0  # share of the pixels with a known disparity
    largest: float = 0.0  # disparity, in pixels of the files
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)  # number of pairs by (h, w)


def check_stereo(data: StereoSet, after: Callable[[], object] = lambda: None) -> StereoFindings:
    """Findings of a set in files; if it has defects, raise DataError with all of them, the first 20 in its message."""
    findings = inspect_stereo(data, after) if data.in_files else StereoFindings([])
    raise_problems(data, findings.problems)
    return findings


def inspect_stereo(data: StereoSet, after: Callable[[], object] = lambda: None) -> StereoFindings:
    """Problems, disparities and sizes; `after` is called once per pair."""
    if not len(data):
        return StereoFindings([f"{data.name}: split '{data.split}' is empty"])
    rows = data.inspect(after)
    repeated = [f"{id}: listed {n} times in split '{data.split}'" for id, n in Counter(data.ids).items() if n > 1]
    readable = [row for row in rows if "h" in row and "known" in row]  # left image and disparity could be read
    return StereoFindings(
        repeated + [line for row in rows if row["problem"] for line in row["problem"].split("\n")],
        sum(row["known"] for row in readable) / max(1, sum(row["h"] * row["w"] for row in readable)),
        max(row.get("largest", 0.0) for row in rows),
        dict(Counter((row["h"], row["w"]) for row in rows if "h" in row)),
    )


def describe_disparity(disparity: Any) -> Row:
    """The entries of a row of `StereoSet.inspect` that a disparity map gives.   h w"""
    h, w = disparity.shape
    return {"h": h, "w": w, "known": int((disparity != UNKNOWN).sum()), "largest": float(disparity.max())}


# -- training batches --------------------------------------------------------------------------------------------------


class StereoBatch(NamedTuple):
    """b crops of pairs."""

    left: Tensor  # b 3 h w, float32, normalised
    right: Tensor  # b 3 h w, float32, normalised
    disparity: Tensor  # b h w, float32, 0 where unknown
    ids: list[str]


class StereoBatches(PackedImageLoader[StereoSet, StereoBatch]):
    """Random crops of pairs, without resizing. The other options are those of `BatchLoader`.

    - `crop`: height and width, at a uniformly random place; a smaller pair is padded with zeros (the mean colour) and
      unknown disparities
    - `flip`: turn half of the pairs upside down; mirroring would exchange the cameras
    - `photometric`: strength of brightness, contrast and saturation changes, the same for both images
    """

    def __init__(
        self,
        dataset: StereoSet,
        *,
        crop: tuple[int, int],
        flip: bool = False,
        photometric: float = 0.0,
        **options: Any,
    ) -> None:
        self.crop, self.flip, self.photometric = crop, flip, float(photometric)
        super().__init__(dataset, **options)

    def read(self, index: int) -> PackedSample:
        """One pair as a single tensor, h*w 3, int32: left colours, right colours, and the bits of the disparity."""
        sample = self.dataset.read(index, occlusions=False)
        h, w = sample.disparity.shape
        packed = np.zeros((h, w, 3, 4), np.uint8)
        for side, image in enumerate((sample.left, sample.right)):
            packed[..., side, :3] = np.moveaxis(image.numpy(), 0, -1)
        packed[..., 2, :] = np.ascontiguousarray(sample.disparity.numpy(), np.float32)[..., None].view(np.uint8)
        return PackedSample(torch.from_numpy(packed).view(torch.int32).squeeze(-1).flatten(0, 1), (h, w))

    def view(self, rng: KeyedRng, size: tuple[int, int]) -> AugmentedView:
        """A random view. Six numbers are drawn whatever the options, so that one option does not affect another."""
        u = [rng.uniform() for _ in range(6)]
        top, left = (random_offset(extent - side, v) for extent, side, v in zip(size, self.crop, u, strict=False))
        jitter = [self.photometric * (2 * v - 1) for v in u[3:]]
        return AugmentedView(*size, top, left, self.flip and u[2] < 0.5, jitter[0], 1 + jitter[1], 1 + jitter[2])

    def cut(
        self, packed: PackedImages, indices: Sequence[int], step: int, places: Sequence[int], ids: list[str]
    ) -> StereoBatch:
        views = [self.view(each, packed.sizes[i]) for i, each in zip(indices, self.rngs(step, places), strict=True)]
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
        return normalise(colours.contiguous())


from hamburger.stereo.data import layouts, planes  # noqa: E402, F401 - registers the sets, which import this file
