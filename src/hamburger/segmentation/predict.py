"""Predict the class of every pixel of an image of any size; write label PNGs and overlays; draw images of a report."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import MAX_SIDE, MIN_SIDE, Info
from hamburger.devices import pick_device
from hamburger.errors import InputError, OptionError, check_count, shorten
from hamburger.inference.disk_maps import Progress
from hamburger.inference.find_weights import find_weights
from hamburger.inference.predict_files import FilePrediction, FilePredictor, read_image
from hamburger.registry import explain_errors
from hamburger.segmentation.evaluate import predict_scores
from hamburger.segmentation.model import load_weights
from hamburger.segmentation.stream import MAX_TILE_PIXELS, StreamedLabels, count_labels
from hamburger.training.datasets import IGNORE, Sample
from hamburger.training.image_files import Colour, encode_label_png, full_palette, normalise, resized
from hamburger.training.supervised import EvaluationProtocol, check_prediction
from hamburger.training.task import Metric
from hamburger.training.visualizer import CaptionedImage, Legend, Visualizer

if TYPE_CHECKING:
    from PIL import Image


MAX_PIXELS = 1024 * 1024


class Predictor:
    """Label every pixel of an image.   3 h w uint8   ->   h w uint8, the class of each pixel

    >>> predictor = hb.Predictor("runs/voc")            # or a .safetensors file, a name of list_weights, a network
    >>> labels = predictor(image)

    `info` is by default that of the network, as `load` sets it. The image is resized so that its longer side has `side`
    pixels, by default what the weights were trained on (`info.side`), and the labels are resized back; with side=0 it
    keeps its size. Class probabilities are averaged over `scales`, over the mirrored image with `flip`, and over the
    positions of a sliding square `window` if given. A resized image of more than `max_pixels` at the largest scale is
    split into overlapping tiles that the network sees one by one, so context does not reach beyond a tile.
    """

    @explain_errors("Predictor")
    def __init__(
        self,
        net: nn.Module | str | os.PathLike[str],
        info: Info | None = None,
        device: str | torch.device = "auto",
        *,
        scales: tuple[float, ...] = (1.0,),
        flip: bool = False,
        window: int | None = None,
        max_pixels: int = MAX_PIXELS,
        side: int | None = None,
    ) -> None:
        check_count("Predictor", "max_pixels", max_pixels, least=64 * 64)
        if side:
            check_count("Predictor", "side", side, least=MIN_SIDE, most=MAX_SIDE)
        if not isinstance(net, nn.Module):
            net = load_weights(find_weights(net))[0]
        info = getattr(net, "info", None) if info is None else info
        if not isinstance(info, Info):
            raise InputError(
                f"Predictor: info must say the classes, mean and std of the network, got {shorten(info)}; pass "
                "hamburger.segmentation.Info(classes=(...))"
            )
        if len(info.classes) > 255:
            raise InputError(f"Predictor: a label PNG holds at most 255 classes (got weights with {len(info.classes)})")
        self.info, self.max_pixels, self.side = info, max_pixels, info.side if side is None else side
        self.protocol = EvaluationProtocol(tuple(scales), flip, window)
        self.device = device if isinstance(device, torch.device) else pick_device(device)
        self.net = net.to(self.device).eval()

    def count_tiles(self, height: int, width: int) -> int:
        """Return how many tiles an image of this size is split into."""
        return sum(1 for _ in self._split(*self.input_size(height, width)))

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image of this size is resized for the network."""
        return resized(height, width, self.side) if self.side else (height, width)

    @torch.inference_mode()
    def __call__(self, image: Tensor) -> Tensor:
        ok = isinstance(image, Tensor) and image.dtype == torch.uint8 and image.dim() == 3 and image.numel() > 0
        if not ok or image.shape[0] != 3:
            given = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
            raise InputError(
                f"Predictor: an image must be a uint8 tensor of shape (3, h, w), got {given}; "
                f"read files with hamburger.inference.read_image"
            )
        _, height, width = image.shape
        h, w = self.input_size(height, width)
        if (h, w) != (height, width):
            image = F.interpolate(image[None], size=(h, w), mode="bilinear", antialias=True)[0]
        label = torch.empty(height, width, dtype=torch.uint8)
        for rows, columns in self._split(h, w):
            tile = image[:, rows.begin : rows.end, columns.begin : columns.end]
            x = normalise(tile.to(self.device), self.info.mean, self.info.std)[None]
            scores = check_prediction("logits", predict_scores(self.net, x, self.protocol)[0])
            crop = (slice(span.first - span.begin, span.last - span.begin) for span in (rows, columns))
            target = label[
                rows.first * height // h : rows.last * height // h,
                columns.first * width // w : columns.last * width // w,
            ]
            target.copy_(resize_labels(scores[(slice(None), *crop)], *target.shape))
        return label

    def _split(self, height: int, width: int) -> Iterator[tuple[TileSpan, TileSpan]]:
        largest = max(1.0, *self.protocol.scales)
        return split_image(height, width, max(64 * 64, int(self.max_pixels / largest**2)))


BAND = 2**23  # scores that are resized at once, to bound memory


def resize_labels(scores: Tensor, height: int, width: int) -> Tensor:
    """Return the class of each pixel from scores that are resized first, for smooth edges.   k h w -> height width

    Only classes that are the largest somewhere compete: of a photo's few classes even 24 megapixels take a second.
    """
    label = scores.max(0).indices  # on a CPU much faster than argmax
    if label.shape == (height, width):
        return label
    present = label.unique()
    h, scores = scores.shape[1], scores[present].float()
    label = label.new_empty(height, width)
    for band in torch.arange(height, device=label.device).split(max(1, BAND // max(1, len(present) * width))):
        position = ((band + 0.5) * (h / height) - 0.5).clamp(0, h - 1)
        low = position.long()
        rows = torch.lerp(scores[:, low], scores[:, (low + 1).clamp_max(h - 1)], (position - low)[:, None])
        if rows.numel() and width:
            rows = F.interpolate(rows[None], size=(len(band), width), mode="bilinear")[0]
            label[band] = present[rows.max(0).indices]
    return label


# -- files -------------------------------------------------------------------------------------------------------------


class SegmentationPredictor(FilePredictor):
    """Predicts image files for `ham predict`. Takes the options of `Predictor`, and whether to write an `overlay`.

    With `exact`, a folder for intermediate files, images keep their size and are labelled as by `stream`; `progress` is
    then called with the work done and the total work of the current image.
    """

    columns = ("label", "size", "largest classes")
    remedy = "use a smaller --max-pixels, a --window or another --device"
    progress: Progress = staticmethod(lambda done, total: None)

    def __init__(
        self,
        net: nn.Module,
        info: Info,
        device: torch.device | str,
        *,
        scales: tuple[float, ...] = (1.0,),
        flip: bool = False,
        window: int | None = None,
        max_pixels: int | None = None,
        side: int | None = None,
        overlay: bool = True,
        exact: Path | None = None,
    ) -> None:
        if exact is not None and (tuple(scales) != (1.0,) or flip or window or side):
            raise OptionError("predict: --exact does not apply together with --scales, --flip, --window or --side")
        if max_pixels is None:
            max_pixels = MAX_PIXELS if exact is None else MAX_TILE_PIXELS
        side = side if exact is None else 0
        self.predictor = Predictor(
            net, info, device, scales=scales, flip=flip, window=window, max_pixels=max_pixels, side=side
        )
        super().__init__(net, info, self.predictor.device)
        self.overlay, self.exact = overlay, exact
        self.files = {"label": lambda name: Path(f"{name}.png")}
        if overlay:
            self.files["overlay"] = lambda name: Path(f"{name}_overlay.jpg")
        self.palette = full_palette(info.palette, len(info.classes))

    def __call__(self, *paths: Path) -> FilePrediction:
        (path,) = paths
        if self.exact is not None:
            return self._predict_exactly(path, self.exact)
        image = read_image(path)
        label = self.predictor(image)
        tiles, png = self.predictor.count_tiles(*label.shape), encode_label_png(label, self.palette)
        return self._describe(label.shape, tiles, count_labels(label), png, (image, label))

    def _predict_exactly(self, path: Path, exact: Path) -> FilePrediction:
        folder = exact / hashlib.sha256(str(path).encode()).hexdigest()[:16]
        max_pixels, png = self.predictor.max_pixels, io.BytesIO()
        streamed = StreamedLabels(self.net, path, folder, device=self.device, max_pixels=max_pixels, info=self.info)
        streamed.compute(self.progress)
        streamed.write_png(png)
        size, counts, small = (streamed.height, streamed.width), streamed.count_labels(), streamed.shrink(OVERLAY_SIDE)
        streamed.remove()
        with suppress(OSError):  # it may hold files of other images
            exact.rmdir()
        return self._describe(size, len(streamed.tiles), counts, png.getvalue(), small)

    def _describe(
        self, size: Sequence[int], tiles: int, counts: list[int], png: bytes, drawn: tuple[Tensor, Tensor]
    ) -> FilePrediction:
        """Return the prediction from the pixels of each label and from the image and labels to draw."""
        height, width = size
        shares = name_class_shares(counts, self.info.classes)
        row = {"height": height, "width": width, "tiles": tiles, "shares": shares}
        largest = sorted(shares.items(), key=lambda item: -item[1])[:3]
        class_shares = ", ".join(f"{name} {share:.0%}" for name, share in largest)
        files = {"label": png}
        if self.overlay:
            files["overlay"] = draw_overlay_jpeg(*drawn, self.info.classes, self.palette)
        return FilePrediction(
            row if self.overlay else {"overlay": None, **row}, (f"{width} x {height}", class_shares), files
        )

    def settings(self) -> dict[str, Any]:
        settings = {**super().settings(), "protocol": str(self.predictor.protocol), "side": self.predictor.side or None}
        return settings if self.exact is None else settings | {"exact": True}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        tiled = sum(row.get("tiles", 1) != 1 for row in rows)  # of a summary that anybody may have written
        if tiled and self.exact is None:
            yield f"{tiled} images were split into tiles, which limits context to the tile (see --exact)"


# -- drawing -----------------------------------------------------------------------------------------------------------


OPACITY = 0.55  # of every class but 0
TRANSPARENT = (255, 255, 255)  # class 0 in the legend
SMALLEST, LARGEST = 256, 8192  # the longer side of an overlay
OVERLAY_SIDE = 4096  # of an image that is larger than memory
WIDEST = 40  # characters of a name in the legend: files of others may have longer ones
LINE, LINES = 22, 40  # smallest height of a legend line in pixels; larger images have this many on their longer side


def measure_class_shares(label: Tensor, classes: Sequence[str]) -> dict[str, float]:
    """Return the share of pixels of each class; classes without pixels are left out."""
    return name_class_shares(count_labels(label), classes)


def name_class_shares(counts: Sequence[int], classes: Sequence[str]) -> dict[str, float]:
    """Return the share of each class from its number of pixels; classes without pixels are left out."""
    return {name: counts[i] / sum(counts) for i, name in enumerate(classes) if counts[i]}


def draw_overlay_jpeg(image: Tensor, label: Tensor, classes: Sequence[str], palette: Sequence[Colour]) -> bytes:
    """Return a JPEG of the image under its labels, with a legend of the classes.   3 h w and h w, both uint8

    Class 0, the background in most data sets, is transparent. The legend grows with the image. Small images are
    enlarged by a whole factor and very large ones reduced, for viewing.
    """
    from PIL import Image, ImageOps

    overlay = Image.fromarray(blend_labels(image, label, palette).numpy())
    overlay = ImageOps.scale(overlay, max(1, -(-SMALLEST // max(overlay.size))), Image.Resampling.NEAREST)
    overlay.thumbnail((LARGEST, LARGEST), Image.Resampling.BILINEAR)
    shares = sorted(measure_class_shares(label, classes).items(), key=lambda item: -item[1])
    words = {name: name if len(name) <= WIDEST else f"{name[: WIDEST - 3]}..." for name, _ in shares}
    labels = {name: f"{words[name]}  {f'{share:.1%}' if share >= 0.001 else '<0.1%'}" for name, share in shares}
    colours = [TRANSPARENT, *palette[1:]]
    entries = [(colours[classes.index(name)], text) for name, text in labels.items()]
    longer = max(overlay.size)
    line = max(LINE, min(longer // LINES, 2 * longer // max(1, len(entries))))  # many classes: smaller lines
    legend = _draw_legend(entries, overlay.width, line=line)
    sheet = Image.new("RGB", (max(overlay.width, legend.width), overlay.height + legend.height), "white")
    sheet.paste(overlay, (0, 0))
    sheet.paste(legend, (0, overlay.height))
    buffer = io.BytesIO()
    sheet.save(buffer, format="JPEG", quality=92)
    return buffer.getvalue()


def blend_labels(image: Tensor, label: Tensor, palette: Sequence[Colour]) -> Tensor:
    """Blend image and label colours in bands of rows, to save memory.   3 h w and h w   ->   h w 3, uint8"""
    colours, opacity = torch.tensor(palette, dtype=torch.float32), torch.full((len(palette), 1), OPACITY)
    opacity[0] = 0
    bands = zip(image.movedim(0, -1).split(256), label.long().split(256), strict=True)
    return torch.cat([torch.lerp(i.float(), colours[j], opacity[j]).round().to(torch.uint8) for i, j in bands])


def _draw_legend(entries: Sequence[tuple[Colour, str]], width: int, *, line: int) -> Image.Image:
    """Draw coloured squares with text, in as many columns as fit the width, at least one."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=line * 14 // LINE)
    gap = line // 10
    column = 2 * line + round(max(font.getlength(label) for _, label in entries))
    columns = max(1, width // column)
    lines = -(-len(entries) // columns)
    legend = Image.new("RGB", (max(width, column), line * lines + line // 2), "white")
    draw = ImageDraw.Draw(legend)
    for i, (colour, label) in enumerate(entries):
        left, top = column * (i % columns) + line // 4, line * (i // columns) + line // 4
        square = (left, top + gap, left + line - 3 * gap, top + line - 2 * gap)
        draw.rectangle(square, fill=colour, outline="black", width=max(1, gap // 2))
        draw.text((left + line, top + gap), label, fill="black", font=font)
    return legend


# -- tiles -------------------------------------------------------------------------------------------------------------


class TileSpan(NamedTuple):
    """One tile along one axis: read `begin:end`, keep `first:last`."""

    begin: int
    end: int
    first: int
    last: int


def split_axis(length: int, tile: int, margin: int) -> list[TileSpan]:
    """Return the tiles of one axis; the kept parts cover it exactly once and differ in length by at most one.

    Each tile is read with up to `margin` more on both sides, inside the image, and is at most `tile` long in total.
    """
    if length <= tile:
        return [TileSpan(0, length, 0, length)]
    count = math.ceil(length / (tile - 2 * margin))
    cuts = [length * i // count for i in range(count + 1)]
    return [TileSpan(max(0, first - margin), min(length, last + margin), first, last) for first, last in pairwise(cuts)]


def split_image(height: int, width: int, max_pixels: int) -> Iterator[tuple[TileSpan, TileSpan]]:
    """Yield (rows, columns) of tiles of at most `max_pixels`; a single tile if the image is not larger."""
    if height * width <= max_pixels:
        yield TileSpan(0, height, 0, height), TileSpan(0, width, 0, width)
        return
    side = math.isqrt(max_pixels)
    if height <= side or width <= side:  # a strip: tiles as long as the area allows instead of squares
        short = min(height, width)
        side = max(side, max_pixels // short)
    margin = min(96, side // 8)
    for rows in split_axis(height, side, margin):
        for columns in split_axis(width, side, margin):
            yield rows, columns


# -- images of a report ------------------------------------------------------------------------------------------------


RIGHT, WRONG, UNLABELLED_COLOUR = (222, 222, 216), (213, 94, 0), (150, 150, 150)
CONTEXT = "head.context"


class SegmentationVisualizer(Visualizer):
    """Draws image, label, predictions and errors side by side."""

    metric = Metric("right", "the share of labelled pixels that are right")
    images = "single scale, whole image"
    sample: Callable[[int], Sample]

    def image(self, index: int) -> Tensor:
        return self.sample(index).image

    def input(self, index: int, info: Info, device: torch.device) -> Tensor:
        return normalise(self.image(index).to(device), info.mean, info.std)[None]

    def predict(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Tensor:
        return Predictor(net, info, device, side=0)(self.image(index))

    def judge(self, index: int, prediction: Tensor) -> float:
        return measure_accuracy(prediction, self.sample(index).label)

    def row(self, index: int, predictions: Mapping[str, Tensor], note: str = "") -> list[CaptionedImage]:
        label = self.sample(index).label
        first = CaptionedImage(self.image(index), self.name(index) + note)
        images = [first, CaptionedImage(self._colour(label), "label", drawn=True)]
        for name, prediction in predictions.items():
            images.append(CaptionedImage(self._colour(prediction), name, drawn=True))
            caption = f"errors, {100 * measure_accuracy(prediction, label):.1f} % right"
            images.append(CaptionedImage(draw_errors(prediction, label), caption, drawn=True))
        return images

    def _colour(self, label: Tensor) -> Tensor:
        """Draw labels in the colours of the data set.   h w   ->   3 h w"""
        colours = torch.tensor([UNLABELLED_COLOUR] * 256, dtype=torch.uint8)
        colours[: len(self.split.palette)] = torch.tensor(self.split.palette, dtype=torch.uint8)
        return colours[label.long()].movedim(2, 0)

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        present = sorted({int(k) for i in indices for k in self.sample(i).label.unique() if k != IGNORE})
        classes = [(self.split.palette[k], self.split.classes[k]) for k in present]
        return [classes, [(RIGHT, "right"), (WRONG, "wrong"), (UNLABELLED_COLOUR, "unlabelled, not counted")]]

    def context(self, net: nn.Module) -> str | None:
        return CONTEXT if CONTEXT in dict(net.named_modules()) else None


def measure_accuracy(prediction: Tensor, label: Tensor) -> float:
    """Return the share of labelled pixels that are correct; 1 if no pixel is labelled."""
    labelled = label != IGNORE
    correct = (prediction == label) & labelled
    return float(correct.sum() / labelled.sum()) if labelled.any() else 1.0


def draw_errors(prediction: Tensor, label: Tensor) -> Tensor:
    """Draw where the prediction is right, wrong or unlabelled.   h w, h w   ->   3 h w"""
    kind = torch.where(label == IGNORE, 2, (prediction != label).long())
    return torch.tensor([RIGHT, WRONG, UNLABELLED_COLOUR], dtype=torch.uint8)[kind].movedim(2, 0)
