"""Detections: of image files for `ham predict` (JSON, overlays), of a split's images for `ham report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.detection.data import Scene
from hamburger.detection.data.coco import encode_masks
from hamburger.errors import InputError, check_positive
from hamburger.files import encode_json
from hamburger.inference.predict_files import FilePrediction, FilePredictor, read_image
from hamburger.training.image_files import Colour, encode_image, full_palette
from hamburger.training.supervised import check_outputs
from hamburger.training.task import Metric
from hamburger.training.visualizer import CaptionedImage, Legend, Visualizer

MIN_SCORE = 0.5
PROTOCOL = "objects of score {:g} or more"

Objects = dict[str, Tensor]  # boxes m 4, labels m, scores m, masks m h w


@torch.inference_mode()
def detect_objects(net: nn.Module, device: torch.device, image: Tensor, score: float = MIN_SCORE) -> Objects:
    """The objects of at least that score, the highest first, on the CPU.   3 h w, uint8

    The network itself removes objects that overlap one of the same class and a higher score by more than half.
    """
    with check_outputs("scores and boxes", list_heads(net)):
        objects: Objects = net([image.to(device).float() / 255])[0]
    keep = objects["scores"] >= score
    return {name: value[keep].cpu() for name, value in objects.items()}


def list_heads(net: Any) -> tuple[nn.Module, ...]:
    """What returns scores and boxes; torchvision leaves out objects that are NaN, as if there were none."""
    return net.net.rpn.head, net.net.roi_heads.box_predictor, net.net.roi_heads.mask_predictor


class ObjectPredictor(FilePredictor):
    """Writes the objects of at least `score` as JSON and, with `overlay`, draws them on the image."""

    columns = ("objects", "size", "found")

    def __init__(
        self, net: nn.Module, info: Info, device: torch.device, *, score: float = MIN_SCORE, overlay: bool = True
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
        try:
            objects = detect_objects(self.net, self.device, image, self.score)
        except InputError as narrow:
            raise InputError(f"{path}: {narrow}") from None
        counts = Counter(classes[label] for label in objects["labels"].tolist())
        files = {"json": encode_objects(objects, classes)}
        if self.overlay:
            drawn = draw_objects(image, objects, classes, self.info.palette)
            files["overlay"] = encode_image(drawn, "JPEG", quality=92)
        height, width = image.shape[1:]
        commonest = ", ".join(f"{name} x {n}" for name, n in counts.most_common(3)) or "nothing"
        row = {"height": height, "width": width, "objects": dict(counts)}
        return FilePrediction(row, (f"{width} x {height}", commonest), files)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "protocol": PROTOCOL.format(self.score)}


def encode_objects(objects: Objects, classes: Sequence[str]) -> bytes:
    """JSON with one entry per object: class, score, box (left, top, right, bottom), and the mask as a COCO RLE."""
    columns = [objects[name].tolist() for name in ("labels", "scores", "boxes")]
    rows = zip(*columns, encode_masks(objects["masks"]), strict=True)
    entries = [{"class": classes[label], "score": score, "box": box, "mask": mask} for label, score, box, mask in rows]
    return (encode_json({"objects": entries}, indent=1) + "\n").encode()


# -- drawing -----------------------------------------------------------------------------------------------------------

OPACITY = 0.45
MIN_OVERLAY_SIDE = 256  # of the longer side: smaller images are enlarged by a whole factor


def draw_objects(image: Tensor, objects: Objects, classes: Sequence[str], palette: Sequence[Colour]) -> np.ndarray:
    """The image with its objects, those of high scores on top.   3 h w, uint8   ->   h w 3, uint8, perhaps enlarged

    Boxes are labelled with class and score, or with the class alone if `objects` has no scores.
    """
    from PIL import Image, ImageDraw

    colours = full_palette(palette, len(classes))
    labels = objects["labels"].tolist()
    pixels = image.movedim(0, -1).numpy().astype(np.float32)
    for label, mask in reversed(list(zip(labels, objects["masks"].numpy(), strict=True))):
        pixels[mask] = (1 - OPACITY) * pixels[mask] + OPACITY * np.array(colours[label], np.float32)
    canvas = Image.fromarray(np.rint(pixels).astype(np.uint8))
    factor = -(-MIN_OVERLAY_SIDE // max(canvas.size)) if max(canvas.size) < MIN_OVERLAY_SIDE else 1
    canvas = canvas.resize((factor * canvas.width, factor * canvas.height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(canvas)
    scores = objects["scores"].tolist() if "scores" in objects else [None] * len(labels)
    for label, score, box in reversed(list(zip(labels, scores, objects["boxes"].tolist(), strict=True))):
        left, top, right, bottom = (factor * side for side in box)
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colours[label], width=2)
        caption = classes[label] if score is None else f"{classes[label]} {score:.2f}"
        draw.text((left + 3, top + 2), caption, fill="white", stroke_width=1, stroke_fill="black")
    return np.asarray(canvas)


# -- images of a report ------------------------------------------------------------------------------------------------

MIN_OVERLAP = 0.5  # IoU of masks from which on a detection of the same class counts as correct


class ObjectVisualizer(Visualizer):
    metric = Metric("f1", "F1, the harmonic mean of how many objects are found and how many found ones are right")
    each = 4
    images = (
        f"{PROTOCOL.format(MIN_SCORE)}, each with its class and score, found where masks of one class overlap by "
        f"{MIN_OVERLAP:g} or more"
    )
    sample: Callable[[int], Scene]

    def image(self, index: int) -> Tensor:
        return self.sample(index).image

    def predict(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Objects:
        return detect_objects(net, device, self.image(index))

    def judge(self, index: int, objects: Objects) -> float:
        scene = self.sample(index)
        total = len(scene.labels) + len(objects["labels"])
        return 2 * count_correct(objects, scene) / total if total else 1.0

    def row(self, index: int, predictions: Mapping[str, Objects], note: str = "") -> list[CaptionedImage]:
        scene = self.sample(index)
        count = len(scene.labels)
        truth = {"boxes": scene.boxes, "labels": scene.labels, "masks": scene.masks}
        images = [CaptionedImage(self._draw(index, truth), f"{self.name(index)}, {count} objects{note}")]
        for name, objects in predictions.items():
            correct = count_correct(objects, scene)
            caption = f"{name}: {correct} of {count} found, {len(objects['labels']) - correct} wrong"
            images.append(CaptionedImage(self._draw(index, objects), caption))
        return images

    def _draw(self, index: int, objects: Objects) -> Tensor:
        pixels = draw_objects(self.image(index), objects, self.split.classes, self.split.palette)
        return torch.from_numpy(pixels.copy()).movedim(-1, 0)

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        present = sorted({label for i in indices for label in self.sample(i).labels.tolist()})
        return [[(self.split.palette[label], self.split.classes[label]) for label in present]]


def count_correct(objects: Objects, scene: Scene) -> int:
    """The number of true objects with a detection of their class that overlaps them enough; each counts once."""
    free = torch.ones(len(scene.labels), dtype=torch.bool)
    for label, mask in zip(objects["labels"].tolist(), objects["masks"], strict=True):
        intersections = (scene.masks & mask).flatten(1).sum(1)
        overlaps = intersections / (scene.masks | mask).flatten(1).sum(1).clamp_min(1)
        overlaps = torch.where(free & (scene.labels == label), overlaps, 0.0)
        if len(overlaps) and overlaps.max() >= MIN_OVERLAP:
            free[overlaps.argmax()] = False
    return int((~free).sum())
