"""From a photograph to the objects in it: a JSON file, and the photograph with their masks and boxes."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from hamburger.data.base import Colour
from hamburger.data.detection import rle
from hamburger.errors import check_positive
from hamburger.use.answer import Answer, Layout
from hamburger.use.pictures import full_palette

if TYPE_CHECKING:
    from hamburger.models.info import Info

OPACITY = 0.45
SMALLEST = 256  # the longer side of an overlay: smaller photographs are enlarged by a whole factor

Objects = dict[str, Tensor]


class ObjectPredictor:
    """`predictor(image)`: 3 h w uint8   ->   boxes m 4, labels m, scores m, masks m h w, the surest first.

    Objects of at least `score` are kept. Of one class, what overlaps a surer one by more than half is left out by the
    network itself; of two classes it is not.
    """

    suffix = ".json"
    SCORE = 0.5

    def __init__(self, net: nn.Module, info: Info, device: torch.device, *, score: float = SCORE) -> None:
        check_positive("predict", "score", score, zero=True, most=1.0)
        self.info, self.score, self.device = info, float(score), device
        self.net = net.to(device).eval()

    @property
    def protocol(self) -> str:
        return f"objects of score {self.score:g} or more"

    @torch.inference_mode()
    def __call__(self, image: Tensor) -> Objects:
        found: Objects = self.net([image.to(self.device).float() / 255])[0]
        kept = found["scores"] >= self.score
        return {name: value[kept].cpu() for name, value in found.items()}

    def answer(self, image: Tensor, where: Layout) -> Answer:
        found, classes = self(image), self.info.classes
        counted = Counter(classes[label] for label in found["labels"].tolist())
        return Answer(
            label=as_json(found, classes),
            overlay=lambda: overlay_jpeg(image, found, classes, self.info.palette),
            found={"objects": dict(counted)},
            words=", ".join(f"{name} x {n}" for name, n in counted.most_common(3)) or "nothing",
        )


def as_json(found: Objects, classes: Sequence[str]) -> bytes:
    """One entry for each object: class, score, box (left, top, right, bottom), and the mask as COCO's run lengths."""
    parts = zip(*(found[name].tolist() for name in ("labels", "scores", "boxes")), found["masks"].numpy(), strict=True)
    rows = [
        {"class": classes[label], "score": score, "box": box, "mask": rle.written(mask)}
        for label, score, box, mask in parts
    ]
    return (json.dumps({"objects": rows}, indent=1) + "\n").encode()


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
