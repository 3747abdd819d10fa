"""Scenes with the objects that networks find in them, beside those that are there."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hamburger.analysis.report.drawing import is_photo, picture, shrink
from hamburger.analysis.report.gallery import draw_lot
from hamburger.analysis.report.groups import Study
from hamburger.analysis.report.html import Markup, legend, paragraph, tiles
from hamburger.data.detection import DetectionSet, Scene, detection_sets
from hamburger.models.info import Info
from hamburger.tasks import tasks
from hamburger.use.objects import ObjectPredictor, Objects, drawn
from hamburger.use.predict import pick_device

SHOWN = 4  # images
NETWORKS = 4
OVERLAP = 0.5  # of a mask with an object of its class, from which on it is called right


def detections(study: Study, data_root: Path | None, device: str) -> Markup:
    """Some images of the validation split, drawn by lot, before the reference, the best ham and the best rivals."""
    lot = draw_lot(study, detection_sets, data_root, samples=SHOWN, networks=NETWORKS)
    if isinstance(lot, str):
        return paragraph(lot, kind="soft")
    found: dict[str, dict[int, Objects]] = {}
    for group, run in lot.runs.items():
        assert run.weights
        net, info = tasks[study.kind.task].load(run.weights)
        predictor = ObjectPredictor(net, info, pick_device(device))
        found[group.name] = {index: predictor(scene.image) for index, scene in lot.samples.items()}
    said = (
        f"{len(lot.samples)} images of {lot.words}, with the best weights of each run: objects of score "
        f"{ObjectPredictor.SCORE:g} or more, each with its class and score. Under them, how many have an object of "
        f"their class that they overlap by {OVERLAP:g} or more."
    )
    present = sorted({label for scene in lot.samples.values() for label in scene.labels.tolist()})
    colours = legend([(lot.data.palette[label], lot.data.classes[label]) for label in present])
    rows = [
        _row(lot.data, index, scene, {name: seen[index] for name, seen in found.items()})
        for index, scene in lot.samples.items()
    ]
    return Markup(paragraph(said) + colours + "".join(rows))


def _row(data: DetectionSet, index: int, scene: Scene, found: dict[str, Objects]) -> Markup:
    info = Info(classes=data.classes, palette=data.palette)
    truth = {"boxes": scene.boxes, "labels": scene.labels, "masks": scene.masks}
    entries = [(_picture(scene.image, truth, info), f"{data.ids[index]}, {len(scene.labels)} objects")]
    for name, objects in found.items():
        right = right_ones(objects, scene)
        words = f"{name}: {right} of {len(scene.labels)} found, {len(objects['labels']) - right} wrong"
        entries.append((_picture(scene.image, objects, info), words))
    return tiles(entries, large=True)


def right_ones(found: Objects, scene: Scene) -> int:
    """How many objects have a detection of their class that overlaps them enough; each counts once."""
    free = torch.ones(len(scene.labels), dtype=torch.bool)
    for label, mask in zip(found["labels"].tolist(), found["masks"], strict=True):
        shared = (scene.masks & mask).flatten(1).sum(1)
        overlaps = shared / (scene.masks | mask).flatten(1).sum(1).clamp_min(1)
        overlaps = torch.where(free & (scene.labels == label), overlaps, 0.0)
        if len(overlaps) and overlaps.max() >= OVERLAP:
            free[overlaps.argmax()] = False
    return int((~free).sum())


def _picture(image: Tensor, objects: Objects, info: Info) -> str:
    seen = torch.from_numpy(drawn(image, objects, info.classes, info.palette).copy()).movedim(-1, 0)
    return picture(shrink(seen), photo=is_photo(image))
