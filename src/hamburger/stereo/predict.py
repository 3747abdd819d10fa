"""Disparity of stereo pairs in files, as 16-bit PNG, PFM and colours; the exported graph."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, OptionError
from hamburger.inference.image_inputs import Found, Photo, find_photos, read_image
from hamburger.stereo.data.files import pfm
from hamburger.stereo.data.middlebury import Middlebury
from hamburger.stereo.model import StereoNet
from hamburger.training.image_files import normalise
from hamburger.training.task import Answer, Answers, Graph, by_number

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


FINEST = 256  # steps a pixel, as KITTI has it
# from far to near, each lighter than the one before, so that grey-scale readers see the same order
STOPS = ((16, 10, 50), (52, 52, 148), (40, 120, 160), (90, 175, 130), (205, 205, 90), (255, 250, 220))
UNKNOWN_COLOUR = (128, 128, 128)


def steps_per_pixel(reach: float) -> int:
    """The finest power of two, at most 256, with which 16 bits hold every disparity up to `reach`."""
    scale = FINEST
    while scale > 1 and reach * scale > 65535:
        scale //= 2
    return scale


def disparity_png(disparity: Tensor, scale: int) -> bytes:
    """h w, pixels   ->   a 16-bit PNG of scale times the disparity, at least 1: 0 is for unknown ones"""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    values = (disparity.double() * scale).round().clamp(1, 65535).to(torch.int32).cpu().numpy().astype("uint16")
    said = PngInfo()
    said.add_text("disparity_scale", str(scale))
    return _png(Image.fromarray(values), pnginfo=said)


def coloured(disparity: Tensor, highest: float) -> Tensor:
    """From dark (0, far) to light (`highest`, near); grey where it is 0, unknown.   h w   ->   3 h w uint8"""
    stops = torch.tensor(STOPS, dtype=torch.float32)
    place = (disparity.float().cpu() / max(highest, 1e-6)).clamp(0, 1) * (len(STOPS) - 1)
    low = place.floor().long().clamp(max=len(STOPS) - 2)
    mixed = torch.lerp(stops[low], stops[low + 1], (place - low)[..., None]).round().to(torch.uint8)
    unknown = (disparity <= 0).cpu()[..., None]
    return torch.where(unknown, torch.tensor(UNKNOWN_COLOUR, dtype=torch.uint8), mixed).movedim(2, 0).contiguous()


def coloured_png(disparity: Tensor, highest: float) -> bytes:
    from PIL import Image

    return _png(Image.fromarray(coloured(disparity, highest).movedim(0, 2).contiguous().numpy()))


def _png(image: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", **options)  # type: ignore[attr-defined]
    return buffer.getvalue()


# ----------------------------------------------------------------------------------------------------------------------
# The disparity of every pixel of a left photograph: for machines as a 16-bit PNG and a PFM, and in colours.


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


# ----------------------------------------------------------------------------------------------------------------------
# Which stereo pairs a person means by files and folders.


def find_pairs(paths: Sequence[Path], *, recursive: bool = False, outside: Path | None = None) -> Found:
    """LEFT RIGHT, as often as one likes, or folders as those of Middlebury, but for what lies in `outside`."""
    if recursive:
        raise OptionError("predict: folders of pairs are looked through to any depth; leave out --recursive")
    folders, files = [path for path in paths if path.is_dir()], [path for path in paths if not path.is_dir()]
    if len(files) % 2:
        raise OptionError(
            f"predict: stereo takes images in twos, LEFT RIGHT, or folders of pairs; got {len(files)} images"
        )
    lefts = find_photos(files[::2]).photos
    if 2 * len(lefts) < len(files):
        raise OptionError("predict: the same left image is named twice; name each pair once")
    found = [Photo(left.path, left.name, right) for left, right in zip(lefts, files[1::2], strict=True)]
    for folder in folders:
        for pair in Middlebury("val", root=folder).pairs:
            if outside is None or not pair.left.resolve().is_relative_to(outside.resolve()):
                found.append(Photo(pair.left, pair.id, pair.right))
    taken = [pair.name for pair in found]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise OptionError(f"predict: several pairs are called {', '.join(twice)}; predict them into different folders")
    return Found(tuple(found), (), (), ())


# ----------------------------------------------------------------------------------------------------------------------
# How a stereo network looks to other programs.


NEAR = 0.05  # pixels by which a disparity may be off and be the same


def same_disparity(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours - theirs).abs() <= NEAR


DEPTH = Graph(
    size=(256, 512),
    inputs=("left", "right"),
    outputs=("disparity",),
    judge=by_number(same_disparity),
    differ="disparities",
    alike=f"within {NEAR} px of each other",
    free=("batch",),
    fixed="the images are filled up to multiples of 16 inside, and the volume is as wide as they are; write a file for "
    "each size with --size height,width",
)
