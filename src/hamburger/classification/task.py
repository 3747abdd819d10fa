"""Image classification as a task: a class for every image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.classification.recipe import ClassificationRecipe, check_classification_recipe, classification_recipes
from hamburger.registry import Registry
from hamburger.training.datasets import check_same_classes
from hamburger.training.loader import batch_options, to_layout
from hamburger.training.task import SINGLE_SCALE, EvaluationProtocol, Score, Task
from hamburger.training.task_outputs import ExportSpec

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.classification.data.batches import ImageBatch, ImageBatches
    from hamburger.classification.data.load import ImageSet
    from hamburger.classification.evaluate import ClassificationScores
    from hamburger.classification.model import Classifier
    from hamburger.classification.predict import ClassificationPredictor
    from hamburger.classification.visualize import ClassificationVisualizer


class ClassificationSplits(NamedTuple):
    train: ImageSet
    val: ImageSet

    @classmethod
    def of(
        cls, recipe: ClassificationRecipe, root: Path | None, *, verify: bool, note: Callable[[str], object]
    ) -> ClassificationSplits:
        from hamburger.classification.data.load import load_images, open_source

        data = recipe.data
        sources = [
            open_source(data.name, split, size=data.size, root=root, **data.options)
            for split in (data.train_split, data.val_split)
        ]
        train, val = (load_images(source, verify=verify, note=note) for source in sources)
        check_same_classes(data, train.classes, val.classes)
        return cls(train, val)

    def digest(self) -> str:
        return f"{self.train.digest} {self.val.digest}"


class ClassificationTask(Task[ClassificationRecipe]):
    name = "classes"
    networks = "Classifiers"
    recipe = ClassificationRecipe
    recipes = classification_recipes
    scores = (Score("accuracy", "accuracy"),)
    pooled = "the share of the images of the validation split that are classified correctly"
    member_score = Score("per_class", "accuracy")

    def check(self, recipe: ClassificationRecipe, *, processes: int = 1) -> None:
        check_classification_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: ClassificationRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> ClassificationSplits:
        return ClassificationSplits.of(recipe, root, verify=first, note=note)

    def build(self, recipe: ClassificationRecipe, data: ClassificationSplits) -> Classifier:
        from hamburger.classification.model import create_classifier

        return create_classifier(**asdict(recipe.model), num_classes=len(data.train.classes), size=recipe.data.size)

    def batches(self, recipe: ClassificationRecipe, data: ClassificationSplits, device: torch.device) -> ImageBatches:
        from hamburger.classification.data.batches import ImageBatches

        return ImageBatches(data.train, flip=recipe.data.flip, **batch_options(recipe, device))

    def losses(self, model: nn.Module, micro_batch: ImageBatch, recipe: ClassificationRecipe) -> dict[str, Tensor]:
        logits = model(to_layout(micro_batch.images, recipe))
        return {"cross_entropy": F.cross_entropy(logits.float(), micro_batch.labels)}

    def info(self, recipe: ClassificationRecipe, data: ClassificationSplits) -> Info:
        from hamburger.checkpoints.weights_file import Info

        options = recipe.data
        extra: dict[str, Any] = {"recipe": recipe.name, "data": options.name, "data_options": options.options}
        return Info(classes=data.val.classes, extra=extra | {"val_split": options.val_split, "size": options.size})

    def about(self, recipe: ClassificationRecipe) -> dict[str, Any]:
        model = recipe.model
        after = model.after if model.context is not None else None
        return {"backbone": model.backbone, "context": model.context, "after": after, "data": recipe.data.name}

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        from hamburger.classification.model import save_classifier

        save_classifier(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[Classifier, Info]:
        from hamburger.classification.model import load_classifier

        return load_classifier(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def datasets(self) -> Registry[Any]:
        from hamburger.classification.data import image_sources

        return image_sources

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> ImageSet:
        from hamburger.classification.data.load import load_images, open_source

        source = open_source(name, split, size=info.extra["size"], root=root, **options)
        return load_images(source, verify=whole)

    def evaluate(
        self,
        net: nn.Module,
        split: ImageSet,
        info: Info,
        *,
        device: torch.device,
        batch: int = 128,
        workers: int = 4,
        channels_last: bool = False,
        protocol: EvaluationProtocol = SINGLE_SCALE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> ClassificationScores:
        from hamburger.classification.evaluate import evaluate_classifier

        return evaluate_classifier(
            net, split, device=device, batch=batch, channels_last=channels_last, progress=progress
        )

    # -- use -----------------------------------------------------------------------------------------------------

    def predictor(self) -> type[ClassificationPredictor]:
        from hamburger.classification.predict import ClassificationPredictor

        return ClassificationPredictor

    def visualizer(self) -> type[ClassificationVisualizer]:
        from hamburger.classification.visualize import ClassificationVisualizer

        return ClassificationVisualizer

    def export_spec(self, info: Info) -> ExportSpec:
        return ExportSpec(size=(info.extra["size"],) * 2, predictions="images")


CLASSIFICATION = ClassificationTask()
