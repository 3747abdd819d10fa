"""The disparity of every pixel of a left photograph: for machines as a 16-bit PNG and a PFM, and in colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hamburger.data.normalise import normalise
from hamburger.data.stereo.pfm import pfm
from hamburger.engine.answers import Answer, Answers
from hamburger.errors import InputError
from hamburger.models.stereo import StereoNet
from hamburger.use.images import read_image
from hamburger.use.stereo.pictures import coloured_png, disparity_png, steps_per_pixel

if TYPE_CHECKING:
    from hamburger.models.info import Info


@torch.inference_mode()
def disparity_of(net: nn.Module, info: Info, device: torch.device, left: Tensor, right: Tensor) -> Tensor:
    """3 h w and 3 h w, uint8   ->   h w, float32, pixels, on the CPU"""
    one, other = (normalise(image.to(device), info.mean, info.std)[None] for image in (left, right))
    found: Tensor = net(one, other)[0]
    return found.float().cpu()


class StereoAnswers(Answers):
    columns = ("disparities", "size", "from", "to")
    pairs = True
    files = {  # noqa: RUF012 - nobody writes into it
        "disparity": lambda name: Path(f"{name}_disparity.png"),
        "pfm": lambda name: Path(f"{name}_disparity.pfm"),
        "colours": lambda name: Path(f"{name}_colours.png"),
    }

    def __init__(self, net: nn.Module, info: Info, device: torch.device) -> None:
        assert isinstance(net, StereoNet)
        super().__init__(net, info, device)
        self.max_disparity, self.scale = net.max_disparity, steps_per_pixel(net.max_disparity)

    def __call__(self, *paths: Path) -> Answer:
        left, right = (read_image(path) for path in paths)
        if left.shape != right.shape:
            sizes = " and ".join(f"{image.shape[2]} x {image.shape[1]}" for image in (left, right))
            raise InputError(f"{paths[0]} and {paths[1]} have {sizes} pixels; rectified pairs have one size")
        found = disparity_of(self.net, self.info, self.device, left, right)
        (height, width), lowest, highest = found.shape, float(found.min()), float(found.max())
        files = {
            "disparity": disparity_png(found, self.scale),
            "pfm": pfm(found.numpy()),
            "colours": coloured_png(found, highest),
        }
        row = {"right": str(paths[1]), "height": height, "width": width, "lowest": lowest, "highest": highest}
        return Answer(row, (f"{width} x {height}", f"{lowest:.1f} px", f"{highest:.1f} px"), files)

    def settings(self) -> dict[str, Any]:
        return {"scale": self.scale, "max_disparity": self.max_disparity}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        if rows:
            yield f"disparities in PNGs have 16 bits, {self.scale} a pixel; in PFMs they are pixels"
