"""Objects in images: JSON files, and the images with masks and boxes drawn on them."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hamburger.detection.data.masks import encode_masks
from hamburger.errors import check_positive
from hamburger.inference.image_inputs import read_image
from hamburger.training.datasets import full_palette
from hamburger.training.packed_images import Colour
from hamburger.training.predictor import FilePrediction, FilePredictor

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


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


# ----------------------------------------------------------------------------------------------------------------------
# The objects in a photograph: a JSON file, and the photograph with their masks and boxes.


SCORE = 0.5
PROTOCOL = "objects of score {:g} or more"


@torch.inference_mode()
def objects_in(net: nn.Module, device: torch.device, image: Tensor, score: float = SCORE) -> Objects:
    """Those of at least that score, the surest first, on the CPU.   3 h w, uint8

    Of one class, what overlaps a surer one by more than half is left out by the network itself; of two classes it is
    not.
    """
    found: Objects = net([image.to(device).float() / 255])[0]
    kept = found["scores"] >= score
    return {name: value[kept].cpu() for name, value in found.items()}


class ObjectAnswers(FilePredictor):
    """Options: from which `score` on, and whether there is an `overlay`."""

    columns = ("objects", "size", "found")

    def __init__(
        self, net: nn.Module, info: Info, device: torch.device, *, score: float = SCORE, overlay: bool = True
    ) -> None:
        check_positive("predict", "score", score, zero=True, most=1.0)
        super().__init__(net, info, device)
        self.score, self.overlay = float(score), overlay
        self.files = {"json": lambda name: Path(f"{name}.json")}
        if overlay:
            self.files["overlay"] = lambda name: Path(f"{name}_overlay.jpg")

    def __call__(self, *paths: Path) -> FilePrediction:
        (path,) = paths
        image, classes = read_image(path), self.info.classes
        found = objects_in(self.net, self.device, image, self.score)
        counted = Counter(classes[label] for label in found["labels"].tolist())
        files = {"json": as_json(found, classes)}
        if self.overlay:
            files["overlay"] = overlay_jpeg(image, found, classes, self.info.palette)
        height, width = image.shape[1:]
        words = ", ".join(f"{name} x {n}" for name, n in counted.most_common(3)) or "nothing"
        row = {"height": height, "width": width, "objects": dict(counted)}
        return FilePrediction(row, (f"{width} x {height}", words), files)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "protocol": PROTOCOL.format(self.score)}


def as_json(found: Objects, classes: Sequence[str]) -> bytes:
    """One entry for each object: class, score, box (left, top, right, bottom), and the mask as COCO's run lengths."""
    columns = [found[name].tolist() for name in ("labels", "scores", "boxes")]
    rows = zip(*columns, encode_masks(found["masks"]), strict=True)
    objects = [{"class": classes[label], "score": score, "box": box, "mask": mask} for label, score, box, mask in rows]
    return (json.dumps({"objects": objects}, indent=1) + "\n").encode()
