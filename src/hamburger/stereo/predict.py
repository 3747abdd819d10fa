"""Disparities: of pairs in files for `ham predict` (16-bit PNG, PFM, colours), of a split's pairs for `ham report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.errors import InputError, OptionError
from hamburger.inference.predict_files import (
    FilePrediction,
    FilePredictor,
    FoundImages,
    InputImage,
    find_images,
    is_below,
    read_image,
)
from hamburger.stereo.data import UNKNOWN, StereoSample
from hamburger.stereo.data.files import encode_pfm
from hamburger.stereo.data.layouts import MiddleburySet
from hamburger.stereo.evaluate import BOUNDS, mean_errors, sum_errors
from hamburger.stereo.model import COARSEST, StereoNet
from hamburger.training.datasets import join_names
from hamburger.training.image_files import encode_image, normalise
from hamburger.training.safe_files import check_pixels
from hamburger.training.supervised import check_prediction
from hamburger.training.task import Metric
from hamburger.training.visualizer import CaptionedImage, Legend, Visualizer

MAX_PNG_SCALE = 256  # PNG values per pixel of disparity, as in KITTI
# from far to near, each lighter than the one before, so that the order survives in grey
COLOUR_STOPS = ((16, 10, 50), (52, 52, 148), (40, 120, 160), (90, 175, 130), (205, 205, 90), (255, 250, 220))
UNKNOWN_COLOUR = (128, 128, 128)


@torch.inference_mode()
def predict_disparity(net: nn.Module, info: Info, device: torch.device, left: Tensor, right: Tensor) -> Tensor:
    """The disparity of a pair.   3 h w and 3 h w, uint8   ->   h w, float32, pixels, on the CPU"""
    disparity: Tensor = net(*(normalise(image.to(device), info.mean, info.std)[None] for image in (left, right)))[0]
    return check_prediction("disparities", disparity.float().cpu())


class StereoPredictor(FilePredictor):
    """Writes the disparity of a pair as a 16-bit PNG, a PFM and a coloured PNG."""

    columns = ("disparities", "size", "from", "to")
    pairs = True
    files = {  # noqa: RUF012 - never modified
        "disparity": lambda name: Path(f"{name}_disparity.png"),
        "pfm": lambda name: Path(f"{name}_disparity.pfm"),
        "colours": lambda name: Path(f"{name}_colours.png"),
    }

    def __init__(self, net: nn.Module, info: Info, device: torch.device) -> None:
        assert isinstance(net, StereoNet)
        super().__init__(net, info, device)
        self.max_disparity, self.scale = net.max_disparity, choose_png_scale(net.max_disparity)

    def __call__(self, *paths: Path) -> FilePrediction:
        left, right = (read_image(path) for path in paths)
        if left.shape != right.shape:
            sizes = " and ".join(f"{image.shape[2]} x {image.shape[1]}" for image in (left, right))
            raise InputError(
                f"{paths[0]} and {paths[1]} have {sizes} pixels; the images of a rectified pair have the same size"
            )
        check_pixels(paths[0], *(-(-side // COARSEST) * COARSEST for side in reversed(left.shape[1:])))  # as padded
        disparity = predict_disparity(self.net, self.info, self.device, left, right)
        (height, width), lowest, highest = disparity.shape, float(disparity.min()), float(disparity.max())
        files = {
            "disparity": encode_disparity(disparity, self.scale),
            "pfm": encode_pfm(disparity.numpy()),
            "colours": encode_image(colour_disparity(disparity, highest).movedim(0, 2).numpy(), "PNG"),
        }
        row = {"right": str(paths[1]), "height": height, "width": width, "lowest": lowest, "highest": highest}
        return FilePrediction(row, (f"{width} x {height}", f"{lowest:.1f} px", f"{highest:.1f} px"), files)

    def settings(self) -> dict[str, Any]:
        return {"scale": self.scale, "max_disparity": self.max_disparity}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        if rows:
            yield f"16-bit PNGs hold {self.scale} times the disparity; PFMs hold the disparity in pixels"


# -- encoding ----------------------------------------------------------------------------------------------------------


def choose_png_scale(largest: float) -> int:
    """The largest power of two, at most 256, with which 16 bits hold every disparity up to `largest`."""
    scale = MAX_PNG_SCALE
    while scale > 1 and largest * scale > 65535:
        scale //= 2
    return scale


def encode_disparity(disparity: Tensor, scale: int) -> bytes:
    """A 16-bit PNG of `scale` times the disparity, at least 1, since 0 means unknown.   h w, pixels"""
    from PIL.PngImagePlugin import PngInfo

    values = (disparity.double() * scale).round().clamp(1, 65535).to(torch.int32).cpu().numpy().astype("uint16")
    metadata = PngInfo()
    metadata.add_text("disparity_scale", str(scale))
    return encode_image(values, "PNG", pnginfo=metadata)


def colour_disparity(disparity: Tensor, highest: float) -> Tensor:
    """Colours from dark (far) to light (`highest`, near); grey where the disparity is 0.   h w   ->   3 h w, uint8"""
    stops = torch.tensor(COLOUR_STOPS, dtype=torch.float32)
    position = (disparity.float().cpu() / max(highest, 1e-6)).clamp(0, 1) * (len(COLOUR_STOPS) - 1)
    low = position.floor().long().clamp(max=len(COLOUR_STOPS) - 2)
    mixed = torch.lerp(stops[low], stops[low + 1], (position - low)[..., None]).round().to(torch.uint8)
    unknown = (disparity <= 0).cpu()[..., None]
    return torch.where(unknown, torch.tensor(UNKNOWN_COLOUR, dtype=torch.uint8), mixed).movedim(2, 0).contiguous()


# -- inputs ------------------------------------------------------------------------------------------------------------


def find_pairs(paths: Sequence[Path], *, recursive: bool = False, outside: Path | None = None) -> FoundImages:
    """The pairs named by LEFT RIGHT ... or by folders in Middlebury's layouts, except those in `outside`."""
    if recursive:
        raise OptionError("predict: folders of pairs are always searched recursively; leave out --recursive")
    folders, files = [path for path in paths if path.is_dir()], [path for path in paths if not path.is_dir()]
    if len(files) % 2:
        raise OptionError(
            f"predict: stereo takes pairs of images, LEFT RIGHT, or folders of pairs (got {len(files)} images)"
        )
    lefts = find_images(files[::2]).photos
    if 2 * len(lefts) < len(files):
        raise OptionError("predict: the same left image is named twice; name each pair once")
    pairs = [InputImage(left.path, left.name, right) for left, right in zip(lefts, files[1::2], strict=True)]
    for folder in folders:
        for pair in MiddleburySet("val", root=folder).pairs:
            if outside is None or not is_below(pair.left, outside):
                pairs.append(InputImage(pair.left, pair.id, pair.right))
    if repeated := sorted(name for name, n in Counter(pair.name for pair in pairs).items() if n > 1):
        raise OptionError(
            f"predict: several pairs are called {join_names(repeated)}; predict them into different folders"
        )
    return FoundImages(tuple(pairs), (), (), ())


# -- images of a report ------------------------------------------------------------------------------------------------

# of errors within 1 pixel, from 1 to 3, above 3, and unknown
ERROR_COLOURS = ((222, 222, 216), (230, 159, 0), (213, 94, 0), UNKNOWN_COLOUR)


class StereoVisualizer(Visualizer):
    metric = Metric("epe", "EPE", "px", higher=False)
    each = 4
    images = "whole pairs, disparities from dark (far) to light (near) on one scale for a row, unknown ones grey"
    sample: Callable[[int], StereoSample]

    def image(self, index: int) -> Tensor:
        return self.sample(index).left

    def predict(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Tensor:
        sample = self.sample(index)
        return predict_disparity(net, info, device, sample.left, sample.right)

    def judge(self, index: int, disparity: Tensor) -> float:
        return self._errors(index, disparity)[0] or 0.0

    def _errors(self, index: int, disparity: Tensor) -> tuple[float, float, float] | tuple[None, None, None]:
        truth = self.sample(index).disparity
        return mean_errors(sum_errors(disparity, truth, truth > UNKNOWN))

    def row(self, index: int, predictions: Mapping[str, Tensor], note: str = "") -> list[CaptionedImage]:
        truth = self.sample(index).disparity
        highest = float(truth.max())
        images = [
            CaptionedImage(self.image(index), f"{self.name(index)}, left{note}"),
            CaptionedImage(colour_disparity(truth, highest), f"true disparity, up to {highest:.0f} px", drawn=True),
        ]
        for name, disparity in predictions.items():
            epe, _, over_3 = self._errors(index, disparity)
            errors = "" if epe is None or over_3 is None else f"EPE {epe:.2f} px, {100 * over_3:.1f} % above 3 px"
            images.append(CaptionedImage(colour_disparity(disparity.clamp_min(1e-3), highest), name, drawn=True))
            images.append(CaptionedImage(colour_errors(disparity, truth), f"errors, {errors}", drawn=True))
        return images

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        meanings = ("within 1 px", "1 ... 3 px off", "more than 3 px off", "unknown")
        return [list(zip(ERROR_COLOURS, meanings, strict=True))]


def colour_errors(disparity: Tensor, truth: Tensor) -> Tensor:
    """The error of each known pixel in one of three colours.   h w, h w   ->   3 h w, uint8"""
    error = (disparity - truth).abs()
    category = torch.stack([error > bound for bound in BOUNDS]).sum(0)
    colours = torch.tensor(ERROR_COLOURS, dtype=torch.uint8)
    return colours[torch.where(truth == UNKNOWN, 3, category)].movedim(2, 0)
