"""Label every pixel of an image of any size, and write label PNGs and overlays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, OptionError, check_count
from hamburger.inference.image_inputs import read_image
from hamburger.segmentation.evaluate import predict_labels
from hamburger.segmentation.overlay import draw_overlay_jpeg, encode_label_png, measure_class_shares
from hamburger.training.datasets import full_palette
from hamburger.training.image_files import normalise
from hamburger.training.predictor import FilePrediction, FilePredictor
from hamburger.training.protocol import EvaluationProtocol

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


MAX_PIXELS = 1024 * 1024


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as refusal:
        why = str(refusal).splitlines()[0]
        raise OptionError(f"device: {name!r} cannot be used here ({why}); take auto, cpu or cuda") from None
    return device


class Predictor:
    """Label every pixel of an image.   3 h w uint8   ->   h w uint8, the class of each pixel

    >>> predictor = hb.Predictor(hb.load("runs/voc"))
    >>> labels = predictor(image)

    `info` is by default that of the network, as `load` sets it.
    Class probabilities are averaged over `scales`, over the mirrored image with `flip`, and over the places of a
    sliding square `window` where one is given. An image of more than `max_pixels` at the largest scale is cut into
    overlapping tiles, each an image of its own to the network: then context is as global as the tile.
    """

    def __init__(
        self,
        net: nn.Module,
        info: Info | None = None,
        device: str | torch.device = "auto",
        *,
        scales: tuple[float, ...] = (1.0,),
        flip: bool = False,
        window: int | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        check_count("Predictor", "max_pixels", max_pixels, least=64 * 64)
        info = getattr(net, "info", None) if info is None else info
        if info is None:
            raise InputError("Predictor: this network has no info; pass the Info with its classes, mean and std")
        if len(info.classes) > 255:
            raise InputError(f"Predictor: a label PNG holds 255 classes, these weights know {len(info.classes)}")
        self.info, self.max_pixels = info, max_pixels
        self.protocol = EvaluationProtocol(tuple(scales), flip, window)
        self.device = device if isinstance(device, torch.device) else pick_device(device)
        self.net = net.to(self.device).eval()

    def cuts(self, height: int, width: int) -> int:
        """How many tiles an image of this size is cut into."""
        return sum(1 for _ in self._tiles(height, width))

    @torch.inference_mode()
    def __call__(self, image: Tensor) -> Tensor:
        if image.dtype != torch.uint8 or image.dim() != 3 or image.shape[0] != 3 or image.numel() == 0:
            raise InputError(
                f"Predictor: an image is uint8 of shape (3, h, w), got {image.dtype} {tuple(image.shape)}; "
                f"read files with hamburger.inference.image_inputs.read_image"
            )
        _, height, width = image.shape
        label = torch.empty(height, width, dtype=torch.uint8)
        for rows, columns in self._tiles(height, width):
            part = image[:, rows.begin : rows.end, columns.begin : columns.end]
            found = self._label(part)[rows.first - rows.begin :, columns.first - columns.begin :]
            kept = label[rows.first : rows.last, columns.first : columns.last]
            kept.copy_(found[: kept.shape[0], : kept.shape[1]])
        return label

    def _tiles(self, height: int, width: int) -> Iterator[tuple[TileSpan, TileSpan]]:
        largest = max(1.0, *self.protocol.scales)
        return split_image(height, width, max(64 * 64, int(self.max_pixels / largest**2)))

    def _label(self, image: Tensor) -> Tensor:
        """3 h w uint8   ->   h w: one tile, or a whole image, through the network."""
        x = normalise(image.to(self.device), self.info.mean, self.info.std)[None]
        return predict_labels(self.net, x, self.protocol)[0].to("cpu", torch.uint8)


# ----------------------------------------------------------------------------------------------------------------------
# Every pixel of a photograph: its label as a PNG, and an overlay to look at.


LAYOUTS = ("plain", "voc")
VOC_FOLDER = Path("results/VOC2012/Segmentation/comp6_test_cls")


@dataclass(frozen=True)
class OutputLayout:
    """Where the pictures of a photograph go, and which value a class has in its label."""

    label: Callable[[str], Path]
    overlay: Callable[[str], Path]
    values: tuple[int, ...] | None = None  # by class; None: the index of the class
    by_id: bool = False  # files are found by the stem of the photograph, which must be its own


def find_layout(name: str, classes: Sequence[str]) -> OutputLayout:
    if name == "plain":
        return OutputLayout(lambda of: Path(f"{of}.png"), lambda of: Path(f"{of}_overlay.jpg"))
    if name != "voc":
        raise OptionError(f"predict: no layout {name!r}; there are: {', '.join(LAYOUTS)}")
    from hamburger.segmentation.data.voc import CLASSES

    unknown = [one for one in classes if one not in CLASSES]
    if unknown:
        raise OptionError(
            f"predict: the voc layout needs PASCAL VOC's classes, but these weights know {', '.join(unknown[:5])}; "
            f"take --layout plain"
        )
    values = tuple(CLASSES.index(one) for one in classes)
    return OutputLayout(
        lambda of: VOC_FOLDER / f"{of}.png", lambda of: Path("overlays") / f"{of}.jpg", values, by_id=True
    )


class SegmentAnswers(FilePredictor):
    """Options beside those of `Predictor`: the `layout` of the files, and whether there is an `overlay`: by default
    not for a layout that a server reads.
    """

    columns = ("label", "size", "largest classes")
    remedy = "take a smaller --max-pixels, a --window or another --device"

    def __init__(
        self,
        net: nn.Module,
        info: Info,
        device: torch.device | str,
        *,
        scales: tuple[float, ...] = (1.0,),
        flip: bool = False,
        window: int | None = None,
        max_pixels: int = MAX_PIXELS,
        overlay: bool | None = None,
        layout: str = "plain",
    ) -> None:
        self.predictor = Predictor(net, info, device, scales=scales, flip=flip, window=window, max_pixels=max_pixels)
        super().__init__(net, info, self.predictor.device)
        self.layout = find_layout(layout, info.classes)
        self.by_id = self.layout.by_id
        self.overlay = layout == "plain" if overlay is None else overlay
        self.files = {"label": self.layout.label} | ({"overlay": self.layout.overlay} if self.overlay else {})
        self.palette = full_palette(info.palette, len(info.classes))

    def __call__(self, *paths: Path) -> FilePrediction:
        (path,) = paths
        image = read_image(path)
        label = self.predictor(image)
        height, width = label.shape
        had = measure_class_shares(label, self.info.classes)
        row = {"height": height, "width": width, "tiles": self.predictor.cuts(height, width), "shares": had}
        largest = sorted(had.items(), key=lambda item: -item[1])[:3]
        words = ", ".join(f"{name} {share:.0%}" for name, share in largest)
        files = {"label": self._label_png(label)}
        if self.overlay:
            files["overlay"] = draw_overlay_jpeg(image, label, self.info.classes, self.palette)
        return FilePrediction(row if self.overlay else {"overlay": None, **row}, (f"{width} x {height}", words), files)

    def _label_png(self, label: Tensor) -> bytes:
        if self.layout.values is None:
            return encode_label_png(label, self.palette)
        values = torch.tensor(self.layout.values, dtype=torch.uint8)
        return encode_label_png(values[label.int()], full_palette((), 0))  # VOC's ids in VOC's colours

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "protocol": str(self.predictor.protocol)}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        tiled = sum(row["tiles"] > 1 for row in rows)
        if tiled:
            yield f"{tiled} of them in tiles, where context reaches no further than the tile (see --max-pixels)"


# ----------------------------------------------------------------------------------------------------------------------
# Cut a large image into overlapping tiles, so that memory is bounded by the tile and not by the photograph.


class TileSpan(NamedTuple):
    """One tile along one axis: read `begin:end`, keep `first:last`."""

    begin: int
    end: int
    first: int
    last: int


def split_axis(length: int, tile: int, margin: int) -> list[TileSpan]:
    """Tiles of one axis: the kept parts cover it once and differ by at most one position.

    Each is read with `margin` more on both sides, where the image goes on, and is at most `tile` long in all.
    """
    if length <= tile:
        return [TileSpan(0, length, 0, length)]
    count = math.ceil(length / (tile - 2 * margin))
    cuts = [length * i // count for i in range(count + 1)]
    return [TileSpan(max(0, first - margin), min(length, last + margin), first, last) for first, last in pairwise(cuts)]


def split_image(height: int, width: int, max_pixels: int) -> Iterator[tuple[TileSpan, TileSpan]]:
    """(rows, columns) of every tile of at most `max_pixels`; one tile where the whole image is no larger."""
    if height * width <= max_pixels:
        yield TileSpan(0, height, 0, height), TileSpan(0, width, 0, width)
        return
    side = math.isqrt(max_pixels)
    if height <= side or width <= side:  # a strip: as long as the area allows, not a row of squares
        short = min(height, width)
        side = max(side, max_pixels // short)
    margin = min(96, side // 8)
    for rows in split_axis(height, side, margin):
        for columns in split_axis(width, side, margin):
            yield rows, columns
