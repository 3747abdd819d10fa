"""Objects drawn over their photograph."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from hamburger.data.base import Colour
from hamburger.use.pictures import full_palette

OPACITY = 0.45
SMALLEST = 256  # the longer side of an overlay: smaller photographs are enlarged by a whole factor

Objects = dict[str, Tensor]  # boxes m 4, labels m, scores m, masks m h w


def overlay_jpeg(image: Tensor, found: Objects, classes: Sequence[str], palette: Sequence[Colour]) -> bytes:
    """The photograph under the masks, with boxes, classes and scores.   3 h w, uint8"""
    from PIL import Image

    picture = Image.fromarray(drawn(image, found, classes, palette))
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=92)
    return buffer.getvalue()


def drawn(image: Tensor, found: Objects, classes: Sequence[str], palette: Sequence[Colour]) -> np.ndarray:
    """h w 3, uint8; the least sure below the surest. Without scores only classes are written."""
    from PIL import Image, ImageDraw

    colours = full_palette(palette, len(classes))
    labels = found["labels"].tolist()
    pixels = image.movedim(0, -1).numpy().astype(np.float32)
    for label, mask in reversed(list(zip(labels, found["masks"].numpy(), strict=True))):
        pixels[mask] = (1 - OPACITY) * pixels[mask] + OPACITY * np.array(colours[label], np.float32)
    picture = Image.fromarray(np.rint(pixels).astype(np.uint8))
    factor = -(-SMALLEST // max(picture.size)) if max(picture.size) < SMALLEST else 1
    picture = picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(picture)
    scores = found["scores"].tolist() if "scores" in found else [None] * len(labels)
    for label, score, box in reversed(list(zip(labels, scores, found["boxes"].tolist(), strict=True))):
        left, top, right, bottom = (factor * side for side in box)
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colours[label], width=2)
        words = classes[label] if score is None else f"{classes[label]} {score:.2f}"
        draw.text((left + 3, top + 2), words, fill="white", stroke_width=1, stroke_fill="black")
    return np.asarray(picture)
