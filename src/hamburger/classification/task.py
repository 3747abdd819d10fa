"""Image classification as a task: a class for every image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.classification.data import ImageSet, image_sources, load_images, open_source
from hamburger.classification.data.batches import ImageBatch, ImageBatches
from hamburger.classification.evaluate import ClassificationScores, evaluate_classifier
from hamburger.classification.hamformer import HAMFORMERS
from hamburger.classification.model import Classifier, create_classifier
from hamburger.classification.predict import ClassificationPredictor, ClassificationVisualizer
from hamburger.classification.recipe import ClassificationRecipe, check_classification_recipe, classification_recipes
from hamburger.inference.export import ExportSpec
from hamburger.training.datasets import Progress, check_same_classes
from hamburger.training.loader import batch_options, to_layout
from hamburger.training.supervised import SINGLE_SCALE, EvaluationProtocol, Splits, describe_data
from hamburger.training.task import Metric, NoteWriter, Task


class ClassificationSplits(Splits[ImageSet]):
    def digest(self) -> str:
        return f"{self.train.digest} {self.val.digest}"


class ClassificationTask(Task[ClassificationRecipe]):
    name = "classification"
    networks = "Classifiers"
    recipe = ClassificationRecipe
    recipes = classification_recipes
    datasets = image_sources
    predictor = ClassificationPredictor
    visualizer = ClassificationVisualizer
    metrics = (Metric("accuracy", "accuracy"),)
    pooled = "the share of the images of the validation split that are classified correctly"
    member_metric = Metric("per_class", "accuracy")
    single_class = True

    def check(self, recipe: ClassificationRecipe, *, processes: int = 1) -> None:
        check_classification_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self,
        recipe: ClassificationRecipe,
        root: Path | None,
        *,
        check: bool,
        note: NoteWriter,
        progress: Progress = lambda done, total: None,
    ) -> ClassificationSplits:
        data = recipe.data
        sources = Splits.create(self.datasets, data, root, size=data.size)
        splits = ClassificationSplits(*(load_images(source, verify=check, note=note) for source in sources))
        check_same_classes(data, splits.train.classes, splits.val.classes)
        return splits

    def build(self, recipe: ClassificationRecipe, data: ClassificationSplits) -> Classifier:
        return self.create(**asdict(recipe.model), num_classes=len(data.train.classes), size=recipe.data.size)

    def batches(self, recipe: ClassificationRecipe, data: ClassificationSplits, device: torch.device) -> ImageBatches:
        options = batch_options(recipe, device)
        return ImageBatches(data.train, flip=recipe.data.flip, padding=recipe.data.padding, **options)

    def losses(self, model: nn.Module, micro_batch: ImageBatch, recipe: ClassificationRecipe) -> dict[str, Tensor]:
        logits = model(to_layout(micro_batch.images, recipe))
        return {"cross_entropy": F.cross_entropy(logits.float(), micro_batch.labels)}

    def info(self, recipe: ClassificationRecipe, data: ClassificationSplits) -> Info:
        extra = {**describe_data(recipe), "size": recipe.data.size}
        half = (0.5, 0.5, 0.5)  # images are in [-1, 1]
        return Info(classes=data.val.classes, mean=half, std=half, extra=extra)

    def about(self, recipe: ClassificationRecipe) -> dict[str, Any]:
        model = recipe.model
        after = None if model.context is None or model.backbone in HAMFORMERS else model.after
        return {"backbone": model.backbone, "context": model.context, "after": after, "data": recipe.data.name}

    # -- weights -------------------------------------------------------------------------------------------------

    def create(self, **config: Any) -> Classifier:
        return create_classifier(**config)

    # -- scores --------------------------------------------------------------------------------------------------

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> ImageSet:
        return load_images(open_source(name, split, root, **{**options, "size": info.model["size"]}), verify=whole)

    def evaluate(
        self,
        net: nn.Module,
        split: ImageSet,
        info: Info,
        *,
        workers: int = 4,
        protocol: EvaluationProtocol = SINGLE_SCALE,
        **options: Any,
    ) -> ClassificationScores:
        return evaluate_classifier(net, split, **options)

    # -- use -----------------------------------------------------------------------------------------------------

    def export_spec(self, info: Info) -> ExportSpec:
        return ExportSpec(size=(info.model["size"],) * 2, predictions="images")


CLASSIFICATION = ClassificationTask()
