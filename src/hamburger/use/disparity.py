"""Disparity maps of stereo pairs, written into a folder: each pair on its own, so that a bad one costs only itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.data.normalise import normalise
from hamburger.data.stereo.middlebury import Middlebury
from hamburger.data.stereo.pfm import pfm
from hamburger.errors import HamburgerError, InputError, OptionError
from hamburger.files import write_atomically
from hamburger.models.info import Info
from hamburger.models.stereo import StereoNet
from hamburger.use.disparity_pictures import coloured_png, disparity_png, steps_per_pixel
from hamburger.use.images import read_image
from hamburger.use.photos import find_photos

SUMMARY = "summary.json"
ENDINGS = ("_disparity.png", "_disparity.pfm", "_colours.png")


class StereoPair(NamedTuple):
    name: str  # of its output
    left: Path
    right: Path


@torch.inference_mode()
def disparity_of(net: StereoNet, info: Info, left: Tensor, right: Tensor) -> Tensor:
    """3 h w and 3 h w, uint8   ->   h w, float32, pixels, on the CPU"""
    device = next(net.parameters()).device
    one, other = (normalise(image.to(device), info.mean, info.std)[None] for image in (left, right))
    return net(one, other)[0].float().cpu()


def find_pairs(images: Sequence[Path]) -> list[StereoPair]:
    """LEFT RIGHT, as often as one likes, or folders as those of Middlebury."""
    folders, files = [path for path in images if path.is_dir()], [path for path in images if not path.is_dir()]
    if len(files) % 2:
        raise OptionError(
            f"predict: stereo takes images in twos, LEFT RIGHT, or folders of pairs; got {len(files)} images"
        )
    lefts, rights = files[::2], files[1::2]
    names = [photo.name for photo in find_photos(lefts).photos]
    if len(names) < len(lefts):
        raise OptionError("predict: the same left image is named twice; name each pair once")
    found = [StereoPair(*pair) for pair in zip(names, lefts, rights, strict=True)]
    for folder in folders:
        found += [StereoPair(pair.id, pair.left, pair.right) for pair in Middlebury("val", root=folder).pairs]
    taken = [pair.name for pair in found]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise OptionError(f"predict: several pairs are called {', '.join(twice)}; predict them into different folders")
    return found


def predict_pairs(net: StereoNet, info: Info, images: Sequence[Path], out: Path) -> Iterator[str]:
    """Three files a pair and a summary; a line after each. What failed is told at the end, in an error."""
    pairs = find_pairs(images)
    _refuse_to_overwrite(pairs, out)
    scale = steps_per_pixel(net.max_disparity)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for pair in pairs:
        try:
            rows.append(_one(net, info, pair, out, scale))
        except HamburgerError as bad:
            failed.append(str(bad))
            continue
        lowest, highest = rows[-1]["lowest"], rows[-1]["highest"]
        yield (
            f"{pair.name}: {rows[-1]['width']} x {rows[-1]['height']}, disparities {lowest:.1f} ... {highest:.1f} px; "
            f"{out / pair.name}{ENDINGS[0]} (16 bits, {scale} a pixel), {', '.join(ENDINGS[1:])}"
        )
    summary = {"scale": scale, "max_disparity": net.max_disparity, "pairs": rows, "failed": failed}
    write_atomically(out / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
    if failed:
        raise InputError("predict: " + "; ".join(failed))


def _one(net: StereoNet, info: Info, pair: StereoPair, out: Path, scale: int) -> dict[str, Any]:
    left, right = read_image(pair.left), read_image(pair.right)
    if left.shape != right.shape:
        sizes = " and ".join(f"{image.shape[2]} x {image.shape[1]}" for image in (left, right))
        raise InputError(f"{pair.left} and {pair.right} have {sizes} pixels; rectified pairs have one size")
    found = disparity_of(net, info, left, right)
    highest = float(found.max())
    contents = (disparity_png(found, scale), pfm(found.numpy()), coloured_png(found, highest))
    names = [f"{pair.name}{ending}" for ending in ENDINGS]
    for name, content in zip(names, contents, strict=True):
        write_atomically(out / name, content)
    size = {"height": found.shape[0], "width": found.shape[1]}
    sources = {"left": str(pair.left), "right": str(pair.right), "files": names}
    return {**sources, **size, "lowest": float(found.min()), "highest": highest}


def _refuse_to_overwrite(pairs: Sequence[StereoPair], out: Path) -> None:
    """What no prediction has written may be somebody's; a folder of predictions may be written again."""
    ours = set(_listed(out / SUMMARY))
    if not ours and os.path.lexists(out / SUMMARY):
        raise OptionError(f"predict: {out / SUMMARY} is of something else; name another folder with --out")
    for pair in pairs:
        for ending in ENDINGS:
            path = out / f"{pair.name}{ending}"
            if f"{pair.name}{ending}" not in ours and os.path.lexists(path):
                raise OptionError(
                    f"predict: {path} would overwrite a file that no prediction into {out} has listed in {SUMMARY}; "
                    "name another folder with --out, or move the file"
                )


def _listed(summary: Path) -> list[str]:
    try:
        return [name for row in json.loads(summary.read_bytes())["pairs"] for name in row["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
