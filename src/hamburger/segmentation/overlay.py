"""Labels as pictures: palette PNGs for machines, overlays with a legend for eyes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hamburger.training.packed_images import Colour

if TYPE_CHECKING:
    from PIL import Image, ImageFont

OPACITY = 0.55
SMALLEST, LARGEST = 256, 8192  # the longer side of an overlay
LINE = 22  # height of a line of the legend


def encode_label_png(label: Tensor, palette: Sequence[Colour]) -> bytes:
    """h w uint8   ->   a PNG whose pixel values are the labels themselves; the palette only colours them."""
    from PIL import Image

    image = Image.fromarray(label.cpu().numpy())
    image.putpalette([value for colour in palette for value in colour])
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=False)
    return buffer.getvalue()


def measure_class_shares(label: Tensor, classes: Sequence[str]) -> dict[str, float]:
    """Which part of the pixels each class has; classes without any are left out."""
    counted = [torch.bincount(band.flatten(), minlength=256) for band in label.split(256)]
    counts = torch.stack(counted).sum(0).tolist()
    return {name: counts[i] / label.numel() for i, name in enumerate(classes) if counts[i]}


def draw_overlay_jpeg(image: Tensor, label: Tensor, classes: Sequence[str], palette: Sequence[Colour]) -> bytes:
    """The photograph under its labels, and below it the classes found, largest first.   3 h w and h w, both uint8

    Small pictures are enlarged by a whole factor, very large ones reduced: this one is for looking at.
    """
    from PIL import Image

    picture = _viewable(Image.fromarray(_mixed(image, label, palette).numpy()))
    found = sorted(measure_class_shares(label, classes).items(), key=lambda item: -item[1])
    legend = _legend(
        [(palette[classes.index(name)], f"{name}  {_percent(share)}") for name, share in found], picture.width
    )
    sheet = Image.new("RGB", (max(picture.width, legend.width), picture.height + legend.height), "white")
    sheet.paste(picture, (0, 0))
    sheet.paste(legend, (0, picture.height))
    buffer = io.BytesIO()
    sheet.save(buffer, format="JPEG", quality=92)
    return buffer.getvalue()


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"


def _mixed(image: Tensor, label: Tensor, palette: Sequence[Colour]) -> Tensor:
    """3 h w and h w   ->   h w 3 uint8. In bands of rows: floats for a whole photograph are many times its size."""
    colours = torch.tensor(palette, dtype=torch.float32)
    bands = zip(image.movedim(0, -1).split(256), label.split(256), strict=True)
    return torch.cat([((1 - OPACITY) * i + OPACITY * colours[j.long()]).round().to(torch.uint8) for i, j in bands])


def _viewable(picture: Image.Image) -> Image.Image:
    from PIL import Image

    longer = max(picture.size)
    if longer < SMALLEST:
        factor = -(-SMALLEST // longer)
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    if longer > LARGEST:
        width, height = (max(1, side * LARGEST // longer) for side in picture.size)
        return picture.resize((width, height), Image.Resampling.BILINEAR)
    return picture


def _legend(entries: Sequence[tuple[Colour, str]], width: int) -> Image.Image:
    """Coloured squares with words, in as many columns as the width holds, at least one."""
    from PIL import Image, ImageDraw

    font = _font()
    column = 2 * LINE + round(max(font.getlength(words) for _, words in entries))
    columns = max(1, width // column)
    lines = -(-len(entries) // columns)
    legend = Image.new("RGB", (max(width, column), LINE * lines + LINE // 2), "white")
    draw = ImageDraw.Draw(legend)
    for i, (colour, words) in enumerate(entries):
        left, top = column * (i % columns) + LINE // 4, LINE * (i // columns) + LINE // 4
        draw.rectangle((left, top + 2, left + LINE - 6, top + LINE - 4), fill=colour, outline="black")
        draw.text((left + LINE, top + 2), words, fill="black", font=font)
    return legend


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size=14)
