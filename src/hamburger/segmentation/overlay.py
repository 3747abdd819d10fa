"""Label images: palette PNGs for programs, overlays with a legend for people."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hamburger.training.datasets import Colour

if TYPE_CHECKING:
    from PIL import Image

OPACITY = 0.55
SMALLEST, LARGEST = 256, 8192  # the longer side of an overlay
LINE = 22  # height of a legend line in pixels


def encode_label_png(label: Tensor, palette: Sequence[Colour]) -> bytes:
    """Return a PNG whose pixel values are the labels; the palette only colours them.   label: h w uint8"""
    from PIL import Image

    image = Image.fromarray(label.cpu().numpy())
    image.putpalette([value for colour in palette for value in colour])
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=False)
    return buffer.getvalue()


def measure_class_shares(label: Tensor, classes: Sequence[str]) -> dict[str, float]:
    """Return the share of pixels of each class; classes without pixels are left out."""
    band_counts = [torch.bincount(band.flatten(), minlength=256) for band in label.split(256)]
    counts = torch.stack(band_counts).sum(0).tolist()
    return {name: counts[i] / label.numel() for i, name in enumerate(classes) if counts[i]}


def draw_overlay_jpeg(image: Tensor, label: Tensor, classes: Sequence[str], palette: Sequence[Colour]) -> bytes:
    """Return a JPEG of the image under its labels, with a legend of the classes.   3 h w and h w, both uint8

    Small images are enlarged by a whole factor and very large ones reduced, for viewing.
    """
    from PIL import Image

    picture = _resize_for_viewing(Image.fromarray(_blend(image, label, palette).numpy()))
    shares = sorted(measure_class_shares(label, classes).items(), key=lambda item: -item[1])
    legend = _draw_legend(
        [(palette[classes.index(name)], f"{name}  {_format_percent(share)}") for name, share in shares], picture.width
    )
    sheet = Image.new("RGB", (max(picture.width, legend.width), picture.height + legend.height), "white")
    sheet.paste(picture, (0, 0))
    sheet.paste(legend, (0, picture.height))
    buffer = io.BytesIO()
    sheet.save(buffer, format="JPEG", quality=92)
    return buffer.getvalue()


def _format_percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"


def _blend(image: Tensor, label: Tensor, palette: Sequence[Colour]) -> Tensor:
    """Blend image and label colours in bands of rows, to save memory.   3 h w and h w   ->   h w 3, uint8"""
    colours = torch.tensor(palette, dtype=torch.float32)
    bands = zip(image.movedim(0, -1).split(256), label.split(256), strict=True)
    return torch.cat([((1 - OPACITY) * i + OPACITY * colours[j.long()]).round().to(torch.uint8) for i, j in bands])


def _resize_for_viewing(picture: Image.Image) -> Image.Image:
    from PIL import Image

    longer = max(picture.size)
    if longer < SMALLEST:
        factor = -(-SMALLEST // longer)
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    if longer > LARGEST:
        width, height = (max(1, side * LARGEST // longer) for side in picture.size)
        return picture.resize((width, height), Image.Resampling.BILINEAR)
    return picture


def _draw_legend(entries: Sequence[tuple[Colour, str]], width: int) -> Image.Image:
    """Draw coloured squares with text, in as many columns as fit the width, at least one."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=14)
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
