"""The objects in a photograph: a JSON file, and the photograph with their masks and boxes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hamburger.data.detection import rle
from hamburger.engine.answers import Answer, Answers
from hamburger.errors import check_positive
from hamburger.use.detection.pictures import Objects, overlay_jpeg
from hamburger.use.images import read_image

if TYPE_CHECKING:
    from hamburger.models.info import Info

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


class ObjectAnswers(Answers):
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

    def __call__(self, *paths: Path) -> Answer:
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
        return Answer(row, (f"{width} x {height}", words), files)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "protocol": PROTOCOL.format(self.score)}


def as_json(found: Objects, classes: Sequence[str]) -> bytes:
    """One entry for each object: class, score, box (left, top, right, bottom), and the mask as COCO's run lengths."""
    parts = zip(*(found[name].tolist() for name in ("labels", "scores", "boxes")), found["masks"].numpy(), strict=True)
    rows = [
        {"class": classes[label], "score": score, "box": box, "mask": rle.written(mask)}
        for label, score, box, mask in parts
    ]
    return (json.dumps({"objects": rows}, indent=1) + "\n").encode()
