"""Label an image that is larger than memory: `stream` needs the memory of a tile and gives the labels of the whole.

Every part of these networks but the hams sees a neighbourhood only. Read with a margin as wide as the receptive field,
a tile has the features of the whole image. A ham sees all positions, but combines them by sums alone. So

    for each ham    every tile: run the network up to the ham, store the ham's input      -> features on disk
                    K + 1 times: read the features, update codes, add up, update bases    -> codes and bases on disk
    at the end      every tile: run the network, where each ham returns its bases times the stored codes    -> labels

The network runs once more than it has hams.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.devices import pick_device
from hamburger.errors import HamburgerError, InputError, NotFiniteError, OptionError, check_count, shorten
from hamburger.files import lock, open_atomically, open_own
from hamburger.inference.disk_maps import DiskMap, Pass, Progress, run_with_journal, write_label_png
from hamburger.inference.find_weights import find_weights
from hamburger.inference.large_images import LargeImage, open_large_image
from hamburger.layers.ham import HamLayer
from hamburger.registry import explain_errors
from hamburger.segmentation.model import Segmenter, load_weights
from hamburger.segmentation.tiled_ham import Grid, Tile, TiledHam, replace_hams
from hamburger.tensors import debug, widen
from hamburger.training.display import progress_bar
from hamburger.training.image_files import full_palette, normalise
from hamburger.training.supervised import check_prediction

MAX_TILE_PIXELS = 2048 * 2048  # with its margins
BAND = 2**23  # labels that are read at once, and scores that are resized at once
LONGEST_REACH = 4096  # pixels; a network that reaches further is taken for one that sees the whole image


@explain_errors("stream")
def stream(
    net: nn.Module | str | os.PathLike[str],
    image: Tensor | str | os.PathLike[str] | LargeImage,
    out: str | os.PathLike[str] | None = None,
    *,
    work: str | os.PathLike[str] | None = None,
    device: str | torch.device = "auto",
    max_pixels: int = MAX_TILE_PIXELS,
    progress: Progress | None = None,
) -> Tensor | None:
    """Label every pixel of an image of any size, with one context for the whole image.   ->   h w uint8

    >>> hb.stream("runs/aerial", "city.tif", "city-labels.png")         # a TIFF is read tile by tile
    >>> labels = hb.stream(net, image)                                  # a tensor 3 h w uint8, as for Predictor

    The labels are those that the network gives the whole image at its own size, up to rounding, in the memory of a tile
    of `max_pixels`, margins included. The network must be local except for its hams: HamNet without a context or with a
    Hamburger, on a convolutional backbone. With `out`, the labels are written to a PNG and not returned.

    Inputs and codes of the hams are stored below `work`, by default in a temporary folder: 4 (d + 2 r) bytes for each
    position of their maps. If a call is killed, make it again with the same `work`: it continues, and the result is the
    same to the bit. `progress(done, total)` replaces the progress bar.
    """
    with ExitStack() as stack:
        if work is None:
            work = stack.enter_context(TemporaryDirectory(prefix="hamburger-"))
        if progress is None:
            update = stack.enter_context(progress_bar("labelling"))
            progress = lambda done, total: update(completed=done, total=total)  # noqa: E731
        streamed = StreamedLabels(net, image, Path(work), device=device, max_pixels=max_pixels)
        streamed.compute(progress)
        labels = None
        if out is None:
            labels = streamed.labels.read(0, streamed.height, 0, streamed.width)[..., 0]
        else:
            with open_atomically(Path(out)) as file:
                streamed.write_png(file)
        streamed.remove()
    return labels


class StreamedLabels:
    """The labels of one large image, in files below `folder`. `compute` comes first, `remove` last."""

    def __init__(
        self,
        net: nn.Module | str | os.PathLike[str],
        image: Tensor | str | os.PathLike[str] | LargeImage,
        folder: Path,
        *,
        device: str | torch.device = "auto",
        max_pixels: int = MAX_TILE_PIXELS,
        info: Info | None = None,
    ) -> None:
        check_count("stream", "max_pixels", max_pixels, least=64 * 64)
        if not isinstance(net, nn.Module):
            net = load_weights(find_weights(net))[0]
        if not isinstance(net, Segmenter):
            raise InputError(f"stream: needs a segmentation network of create_model or load, got {shorten(net)}")
        info = net.info if info is None else info
        if not isinstance(info, Info):
            raise InputError("stream: the network has no info, which says its classes, mean and std; set net.info")
        self.info, self.source, self.image = info, image, open_large_image(image)
        self.device = device if isinstance(device, torch.device) else pick_device(device)
        self.net, self.folder = net.to(self.device).eval(), folder
        self.height, self.width = self.image.height, self.image.width
        self.grid = Grid.of(net.backbone, self.height, self.width)
        reach, hams = probe(net, self.device)
        self.tiles = self.grid.split(1 + -(-reach // self.grid.stride), max_pixels)
        folder.mkdir(parents=True, exist_ok=True)
        self.hams = [
            TiledHam(name, layer, stride, self.grid, folder / f"ham{i}", self.device)
            for i, (name, layer, stride) in enumerate(hams)
        ]
        self.labels = DiskMap(folder / "labels", self.height, self.width, 1, np.uint8)

    def compute(self, progress: Progress = lambda done, total: None) -> None:
        """Label the image, or what a killed call with the same folder has left of it."""
        with open_own(self.folder / "lock", "ab") as file:
            if not lock(file, wait=False):
                raise OptionError(f"stream: another process works in {self.folder}; name another folder")
            passes: list[Pass] = []
            for ham in self.hams:
                passes.append((len(self.tiles), partial(self._store_features, ham)))
                passes.append((ham.steps + 1, ham.run_step))
            passes.append((len(self.tiles), self._store_labels))
            try:
                with torch.inference_mode(), debug(False):
                    run_with_journal(self.folder / "journal.json", self._plan(), passes, progress)
            except HamburgerError:  # another call would end like this one
                self.remove()
                raise

    def bands(self) -> Iterator[Tensor]:
        """Yield the labels in bands of rows.   ->   h w uint8"""
        step = max(1, BAND // self.width)
        for top in range(0, self.height, step):
            yield self.labels.read(top, min(top + step, self.height), 0, self.width)[..., 0]

    def count_labels(self) -> list[int]:
        """Return the number of pixels of each of 256 labels."""
        return [sum(counts) for counts in zip(*map(count_labels, self.bands()), strict=True)]

    def write_png(self, file: BinaryIO) -> None:
        """Write a palette PNG whose values are the labels, band by band."""
        palette = full_palette(self.info.palette, len(self.info.classes))
        write_label_png(file, self.width, self.height, self.bands(), palette)

    def shrink(self, side: int) -> tuple[Tensor, Tensor]:
        """Return every k-th pixel of image and labels; the longer side is at most `side`.   ->   3 h w, h w"""
        k = -(-max(self.height, self.width) // side)
        step = k * max(1, BAND // (k * self.width))
        spans = [(top, min(top + step, self.height)) for top in range(0, self.height, step)]
        pixels = [self.image.read(*span, 0, self.width)[:, ::k, ::k] for span in spans]
        labels = [self.labels.read(*span, 0, self.width)[::k, ::k, 0] for span in spans]
        return torch.cat(pixels, dim=1), torch.cat(labels)

    def remove(self) -> None:
        """Remove the files of this image, and the folder if nothing else is in it."""
        for ham in self.hams:
            shutil.rmtree(ham.folder, ignore_errors=True)
        for name in ("labels", "journal.json", "lock"):
            (self.folder / name).unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _plan(self) -> dict[str, Any]:
        """All that determines the result: a journal of another plan is not continued."""
        weights = hashlib.sha256(repr(self.net.config).encode())
        for name, value in self.net.state_dict().items():
            weights.update(name.encode() + value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        if isinstance(self.source, Tensor):
            identity: object = hashlib.sha256(self.source.cpu().contiguous().numpy().tobytes()).hexdigest()
        elif isinstance(self.source, (str, os.PathLike)):
            status = Path(self.source).stat()
            identity = [str(Path(self.source).resolve()), status.st_size, status.st_mtime_ns]
        else:
            identity = os.urandom(16).hex()  # it may be another image than in an earlier call
        return {
            "weights": weights.hexdigest(),
            "normalisation": [*self.info.mean, *self.info.std],
            "image": [self.height, self.width, identity],
            "tiles": [len(self.tiles), *self.tiles[0].rows, *self.tiles[0].columns],
            "device": self.device.type,
        }

    def _run(self, tile: Tile, run_ham: Callable[[TiledHam, Tensor], Tensor]) -> Tensor:
        """Return the logits of a tile with its margins.   ->   1 k h w"""
        (top, bottom), (left, right) = self.grid.rows.pixels(tile.rows), self.grid.columns.pixels(tile.columns)
        image = self.image.read(max(0, top), min(bottom, self.height), max(0, left), min(right, self.width))
        x = normalise(image.to(self.device), self.info.mean, self.info.std)[None]
        # zeros, the mean colour, beyond the image
        beyond = (max(0, -left), max(0, right - self.width), max(0, -top), max(0, bottom - self.height))
        hams = {ham.name: ham for ham in self.hams}
        with replace_hams({ham.name: ham.layer for ham in self.hams}, lambda name, z: run_ham(hams[name], z)):
            return self.net.head(self.net.backbone(F.pad(x, beyond))).logits

    def _store_features(self, ham: TiledHam, index: int) -> None:
        """Run one tile up to a ham and store the ham's input."""
        tile = self.tiles[index]

        def run_ham(reached: TiledHam, z: Tensor) -> Tensor:
            if reached is not ham:  # an earlier one, which has been solved
                return reached.reconstruct(tile, z)
            reached.store(tile, z)
            raise _Stop

        try:
            self._run(tile, run_ham)
        except _Stop:
            return
        raise InputError(f"stream: the ham {ham.name} does not run in every call of the network")

    def _store_labels(self, index: int) -> None:
        """Run one tile with all hams solved and store its labels."""
        tile = self.tiles[index]
        (top, bottom), (left, right) = self.grid.rows.own_pixels(tile.rows), self.grid.columns.own_pixels(tile.columns)
        if top == bottom or left == right:  # padding only
            return
        logits = self._run(tile, lambda ham, z: ham.reconstruct(tile, z))[0]
        stride = self.grid.find_stride(tile, logits.shape[1] * logits.shape[2], "the logits")
        # one position more than the tile's own: there are pixels between it and the last one
        logits = check_prediction("logits", logits[(slice(None), *self.grid.own(tile, stride, more=1))])
        k, positions, across = logits.shape
        width = stride * (across - 1) + 1
        step = max(1, BAND // (k * width * stride))
        for i in range(0, max(1, positions - 1), step):
            part = widen(logits[:, i : i + step + 1])  # bands share a row of positions
            size = (stride * (part.shape[1] - 1) + 1, width)
            scores = F.interpolate(part[None], size=size, mode="bilinear", align_corners=True)[0]
            y = top + i * stride
            label = scores[:, : bottom - y, : right - left].max(0).indices
            self.labels.write(y, left, label.to(torch.uint8)[..., None])
        self.labels.sync()


class _Stop(Exception):
    """The ham whose input is wanted has been reached."""


def count_labels(labels: Tensor) -> list[int]:
    """Return the number of pixels of each of 256 labels.   labels: uint8"""
    return [int(count) for count in torch.bincount(labels.flatten(), minlength=256)]


# -- what a prediction sees --------------------------------------------------------------------------------------------


def probe(net: Segmenter, device: torch.device) -> tuple[int, list[tuple[str, HamLayer, int]]]:
    """Return how many pixels away a prediction sees, and the hams, as they run, with the strides of their maps.

    One column of a long strip is NaN: where NaN comes out, the network sees it. Hams return their input meanwhile.
    """
    layers = {name: module for name, module in net.named_modules() if isinstance(module, HamLayer)}
    for length in (512, LONGEST_REACH):
        reach, strides = _probe_strip(net, device, layers, length)
        if reach <= length:
            break
    else:
        if broken := [name for name, value in net.state_dict().items() if not value.isfinite().all()]:
            raise NotFiniteError(f"stream: {broken[0]} of the network has NaN or infinite values")
        raise InputError(
            "stream: the network sees the whole image by something else than a ham, such as attention, pooling or "
            "group norms, so tiles would differ; use HamNet with a Hamburger on a backbone made of convolutions"
        )
    for name in strides:
        _check_ham(name, layers[name])
    return reach, [(name, layers[name], stride) for name, stride in strides.items()]


def _probe_strip(
    net: Segmenter, device: torch.device, layers: Mapping[str, HamLayer], length: int
) -> tuple[int, dict[str, int]]:
    """As `probe`, on a strip that ends `length` pixels from the NaN; more than `length` if a prediction sees an end."""
    stride = max(net.backbone.strides)
    middle = -(-length // stride) + 1
    grid = Grid.of(net.backbone, 2 * stride + 1, 2 * middle * stride + 1)
    x = torch.zeros(1, 3, *grid.size(grid.whole, 1), device=device)
    x[..., grid.columns.before + middle * stride] = math.nan
    strides: dict[str, int] = {}
    reach = 0

    def measure(z: Tensor, what: str) -> int:
        """Update the reach from a map 1 c n; return its stride."""
        nonlocal reach
        stride = grid.find_stride(grid.whole, z.shape[2], what)
        seen = z.isnan().any(1)[0].unflatten(0, grid.size(grid.whole, stride)).any(0).nonzero()
        distance = (seen * stride - middle * grid.stride).abs()
        reach = max(reach, int(distance.max()) + stride if len(seen) else 0)
        return stride

    def run_ham(name: str, z: Tensor) -> Tensor:
        if name in strides:
            raise InputError(f"stream: the ham {name} runs twice in a call of the network")
        strides[name] = measure(z.flatten(2), f"the input of {name}")
        return z

    with torch.inference_mode(), debug(False), replace_hams(layers, run_ham):
        logits = net.head(net.backbone(x)).logits
    if grid.rows.patches and measure(logits.flatten(2), "the logits") != grid.stride:
        raise InputError("stream: this head's logits are finer than the last map of an encoder of patches; use HamNet")
    measure(logits.flatten(2), "the logits")
    return reach, strides


def _check_ham(name: str, layer: HamLayer) -> None:
    if layer.axis != "spatial":
        raise OptionError(f"stream: {name} decomposes along channels, which needs all positions at once")
    if layer.dictionary.init == "carry":
        raise OptionError(f"stream: {name} has init='carry', which is for videos; load the weights with init='fixed'")
    layer.ham.check_parts()
    if getattr(layer.ham, "codes_init", None) == "uniform":
        raise OptionError(f"stream: codes_init='uniform' of {name} depends on the order of positions; use 'softmax'")
