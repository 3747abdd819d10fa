"""Scenes with the objects that networks find in them, beside those that are there."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hamburger.analysis.report.drawing import is_photo, picture, shrink
from hamburger.analysis.report.gallery import SEED, chosen_runs
from hamburger.analysis.report.groups import Study
from hamburger.analysis.report.html import Markup, legend, paragraph, tiles
from hamburger.data.detection import DetectionSet, Scene, create_detection_set, detection_sets
from hamburger.models.info import Info
from hamburger.registry import options_of
from hamburger.tasks import tasks
from hamburger.use.objects import ObjectPredictor, Objects, drawn
from hamburger.use.predict import pick_device

SHOWN = 4  # images
NETWORKS = 4
OVERLAP = 0.5  # of a mask with an object of its class, from which on it is called right


def detections(study: Study, data_root: Path | None, device: str) -> Markup:
    """Some images of the validation split, drawn by lot, before the reference, the best ham and the best rivals."""
    runs = dict(chosen_runs(study))
    if not runs:
        return paragraph("No run has weights (best.safetensors) yet.", kind="soft")
    asked = next(iter(runs.values())).recipe["data"]
    name, split = asked["name"], asked.get("val_split", "val")
    if data_root is None and "root" in options_of(detection_sets[name]):
        words = f"They need the images: the set '{name}' lies in files, and no folder was given (--data DIR)."
        return paragraph(words, kind="soft")
    data = create_detection_set(name, split, data_root, **(asked.get("options") or {}))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED)).tolist()[:SHOWN]
    scenes = {index: data[index] for index in order}
    wanted = [study.reference, study.best("ham"), study.best("rival"), *runs]
    groups = [group for group in dict.fromkeys(wanted) if group in runs][:NETWORKS]
    found: dict[str, dict[int, Objects]] = {}
    for group in groups:
        weights = runs[group].weights
        assert weights
        net, info = tasks[study.kind.task].load(weights)
        predictor = ObjectPredictor(net, info, pick_device(device))
        found[group.name] = {index: predictor(scene.image) for index, scene in scenes.items()}
    names = ", ".join(f"{group.name} (seed {runs[group].seed})" for group in groups)
    said = (
        f"{len(scenes)} images of the {split} split of {name}, drawn by a fixed seed, as {names} see them, with the "
        f"best weights of each run: objects of score {ObjectPredictor.SCORE:g} or more, each with its class and score. "
        f"Under them, how many have an object of their class that they overlap by {OVERLAP:g} or more."
    )
    present = sorted({label for scene in scenes.values() for label in scene.labels.tolist()})
    colours = legend([(data.palette[label], data.classes[label]) for label in present])
    rows = [
        _row(data, index, scene, {name: seen[index] for name, seen in found.items()}) for index, scene in scenes.items()
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
