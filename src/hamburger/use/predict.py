"""From a photograph to a label for each of its pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hamburger.data.normalise import normalise
from hamburger.engine.probabilities import Protocol, labels
from hamburger.errors import InputError, OptionError, check_count
from hamburger.use.answer import Answer, Layout
from hamburger.use.pictures import full_palette, label_png, overlay_jpeg, shares
from hamburger.use.tiles import Span, tiles

if TYPE_CHECKING:
    from hamburger.models.info import Info

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
    """`predictor(image)`: 3 h w uint8   ->   h w uint8, the class of each pixel, in the size that came.

    Class probabilities are averaged over `scales`, over the mirrored image with `flip`, and over the places of a
    sliding square `window` where one is given. An image of more than `max_pixels` at the largest scale is cut into
    overlapping tiles, each an image of its own to the network: then context is as global as the tile.
    """

    suffix = ".png"

    def __init__(
        self,
        net: nn.Module,
        info: Info,
        device: str | torch.device = "auto",
        *,
        scales: tuple[float, ...] = (1.0,),
        flip: bool = False,
        window: int | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        check_count("Predictor", "max_pixels", max_pixels, least=64 * 64)
        if len(info.classes) > 255:
            raise InputError(f"Predictor: a label PNG holds 255 classes, these weights know {len(info.classes)}")
        self.info, self.max_pixels = info, max_pixels
        self.protocol = Protocol(tuple(scales), flip, window)
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
                f"read files with hamburger.use.images.read_image"
            )
        _, height, width = image.shape
        label = torch.empty(height, width, dtype=torch.uint8)
        for rows, columns in self._tiles(height, width):
            part = image[:, rows.begin : rows.end, columns.begin : columns.end]
            found = self._label(part)[rows.first - rows.begin :, columns.first - columns.begin :]
            kept = label[rows.first : rows.last, columns.first : columns.last]
            kept.copy_(found[: kept.shape[0], : kept.shape[1]])
        return label

    def answer(self, image: Tensor, where: Layout) -> Answer:
        """A palette PNG, and the photograph under its labels."""
        label, classes = self(image), self.info.classes
        palette = full_palette(self.info.palette, len(classes))
        if where.values is None:
            written = label_png(label, palette)
        else:  # VOC's ids in VOC's colours
            written = label_png(torch.tensor(where.values, dtype=torch.uint8)[label.int()], full_palette((), 0))
        parts = shares(label, classes)
        largest = sorted(parts.items(), key=lambda item: -item[1])[:3]
        return Answer(
            label=written,
            overlay=lambda: overlay_jpeg(image, label, classes, palette),
            found={"shares": parts},
            words=", ".join(f"{name} {share:.0%}" for name, share in largest),
            tiles=self.cuts(*label.shape),
        )

    def _tiles(self, height: int, width: int) -> Iterator[tuple[Span, Span]]:
        largest = max(1.0, *self.protocol.scales)
        return tiles(height, width, max(64 * 64, int(self.max_pixels / largest**2)))

    def _label(self, image: Tensor) -> Tensor:
        """3 h w uint8   ->   h w: one tile, or a whole image, through the network."""
        x = normalise(image.to(self.device), self.info.mean, self.info.std)[None]
        return labels(self.net, x, self.protocol)[0].to("cpu", torch.uint8)
