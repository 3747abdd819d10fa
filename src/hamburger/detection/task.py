"""Detection and instance segmentation as a task: a class, a box and a mask for every object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.detection.data import (
    DetectionSet,
    SceneBatch,
    SceneBatches,
    check_scenes,
    detection_sets,
)
from hamburger.detection.evaluate import DetectionScores, evaluate_detector
from hamburger.detection.export import detector_export_spec
from hamburger.detection.model import Detector, create_detector
from hamburger.detection.predict import ObjectPredictor, ObjectVisualizer, list_heads
from hamburger.detection.recipe import DetectionRecipe, check_detection_recipe, detection_recipes
from hamburger.inference.export import ExportSpec
from hamburger.training.datasets import Progress, check_each, check_same_classes
from hamburger.training.loader import batch_options
from hamburger.training.supervised import Splits, describe_data
from hamburger.training.task import Metric, NoteWriter, Task


class DetectionSplits(Splits[DetectionSet]):
    def digest(self) -> str:
        """One file holds all annotations, so any tool may change them at once: their hash counts too."""
        return " ".join([super().digest(), *(each.digest for each in self if each.digest)])


class DetectionTask(Task[DetectionRecipe]):
    name = "detection"
    networks = "Mask R-CNN"
    recipe = DetectionRecipe
    recipes = detection_recipes
    datasets = detection_sets
    predictor = ObjectPredictor
    visualizer = ObjectVisualizer
    splits = DetectionSplits
    # fields of DetectionScores in evaluate.py, as they are printed
    metrics = (Metric("mask_map", "mask mAP"), Metric("box_map", "box mAP"))
    pooled = "COCO's average over ten overlaps from 0.5 to 0.95 and over classes, at most 100 objects an image"
    member_metric = Metric("per_class", "mask mAP")
    fixed_batch_size = False  # the number of boxes changes

    def check(self, recipe: DetectionRecipe, *, processes: int = 1) -> None:
        check_detection_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def check_data(self, recipe: DetectionRecipe, data: DetectionSplits, note: NoteWriter, progress: Progress) -> None:
        check_same_classes(recipe.data, data.train.classes, data.val.classes)
        check_each(data, check_scenes, progress)
        for each in data:
            if dropped := getattr(each, "dropped", 0):
                note(f"{each.name}, split '{each.split}': {dropped} invalid annotations are left out")

    def build(self, recipe: DetectionRecipe, data: DetectionSplits) -> Detector:
        return self.create(**asdict(recipe.model), num_classes=len(data.train.classes))

    def batches(self, recipe: DetectionRecipe, data: DetectionSplits, device: torch.device) -> SceneBatches:
        views = {name: getattr(recipe.data, name) for name in ("crop", "scales", "flip", "pad")}
        return SceneBatches(data.train, **views, **batch_options(recipe, device))

    def losses(self, model: nn.Module, micro_batch: SceneBatch, recipe: DetectionRecipe) -> dict[str, Tensor]:
        """Every term is a mean over images or sampled boxes, so micro-batches of equal size weigh the same."""
        terms: dict[str, Tensor] = model(micro_batch.images, micro_batch.targets)
        return terms

    def info(self, recipe: DetectionRecipe, data: DetectionSplits) -> Info:
        return Info(classes=data.val.classes, palette=data.val.palette, extra=describe_data(recipe))

    def about(self, recipe: DetectionRecipe) -> dict[str, Any]:
        model = recipe.model
        after = model.after if model.context is not None else None
        return {"backbone": model.backbone, "context": model.context, "after": after, "data": recipe.data.name}

    def notes(self, recipe: DetectionRecipe, net: Any) -> Iterable[str]:
        report = getattr(net.net.backbone, "report", None)
        if report is not None:
            yield str(report).splitlines()[0]

    def changed_data_advice(self, folder: Path) -> str:
        return (
            "the images, the classes or the annotations (boxes, masks) of a split differ from those it was trained on; "
            "use the same --data with unchanged files, or begin a new run"
        )

    def create(self, **config: Any) -> Detector:
        return create_detector(**config)

    # -- scores --------------------------------------------------------------------------------------------------

    def check_split(self, split: DetectionSet) -> None:
        check_scenes(split)

    def list_outputs(self, net: nn.Module) -> tuple[nn.Module, ...]:
        return list_heads(net)

    def evaluate(
        self, net: nn.Module, split: DetectionSet, info: Info, *, device: torch.device, workers: int = 4, **options: Any
    ) -> DetectionScores:
        """Images are evaluated one by one whatever `batch` is, so that a result depends on nothing but the image."""
        progress = options.get("progress", lambda done, total: None)
        return evaluate_detector(net, split, device=device, workers=workers, progress=progress)

    # -- use -----------------------------------------------------------------------------------------------------

    def export_spec(self, info: Info) -> ExportSpec:
        return detector_export_spec(info.model["size"])


DETECTION = DetectionTask()
