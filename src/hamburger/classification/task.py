"""Image classification as a task: a class for every image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.classification.recipe import ClassificationRecipe, check_class_recipe, classification_recipes
from hamburger.registry import Registry
from hamburger.training.builders import batch_options, check_same_classes, to_layout
from hamburger.training.export_spec import ExportSpec
from hamburger.training.protocol import SINGLE_SCALE, EvaluationProtocol
from hamburger.training.scores import Score
from hamburger.training.task import Task

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.classification.data.batches import Feed, ImageBatch
    from hamburger.classification.data.load import ImageSet
    from hamburger.classification.evaluate import ClassScores
    from hamburger.classification.model import Classifier
    from hamburger.classification.predict import ClassAnswers
    from hamburger.classification.visualize import ClassShowing


class Splits(NamedTuple):
    train: ImageSet
    val: ImageSet

    @classmethod
    def of(
        cls, recipe: ClassificationRecipe, root: Path | None, *, verify: bool, note: Callable[[str], object]
    ) -> Splits:
        from hamburger.classification.data.load import load_images, open_source

        asked = recipe.data
        sources = [
            open_source(asked.name, split, size=asked.size, root=root, **asked.options)
            for split in (asked.train_split, asked.val_split)
        ]
        train, val = (load_images(source, verify=verify, note=note) for source in sources)
        check_same_classes(asked, train.classes, val.classes)
        return cls(train, val)

    def digest(self) -> str:
        return f"{self.train.digest} {self.val.digest}"


class ClassificationTask(Task[ClassificationRecipe]):
    name = "classes"
    networks = "Classifiers"
    recipe = ClassificationRecipe
    recipes = classification_recipes
    scores = (Score("accuracy", "accuracy"),)
    pooled = "the share of the images of the validation split that are named rightly"
    member_score = Score("per_class", "accuracy")

    def check(self, recipe: ClassificationRecipe, *, processes: int = 1) -> None:
        check_class_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: ClassificationRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> Splits:
        return Splits.of(recipe, root, verify=first, note=note)

    def build(self, recipe: ClassificationRecipe, data: Splits) -> Classifier:
        from hamburger.classification.model import create_classifier

        return create_classifier(**asdict(recipe.model), num_classes=len(data.train.classes), size=recipe.data.size)

    def batches(self, recipe: ClassificationRecipe, data: Splits, device: torch.device) -> Feed:
        from hamburger.classification.data.batches import Feed

        return Feed(data.train, flip=recipe.data.flip, **batch_options(recipe, device))

    def losses(self, model: nn.Module, micro_batch: ImageBatch, recipe: ClassificationRecipe) -> dict[str, Tensor]:
        logits = model(to_layout(micro_batch.images, recipe))
        return {"cross_entropy": F.cross_entropy(logits.float(), micro_batch.labels)}

    def info(self, recipe: ClassificationRecipe, data: Splits) -> Info:
        from hamburger.checkpoints.weights_file import Info

        asked = recipe.data
        extra: dict[str, Any] = {"recipe": recipe.name, "data": asked.name, "data_options": asked.options}
        return Info(classes=data.val.classes, extra=extra | {"val_split": asked.val_split, "size": asked.size})

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
    ) -> ClassScores:
        from hamburger.classification.evaluate import evaluate_classes

        return evaluate_classes(net, split, device=device, batch=batch, channels_last=channels_last, progress=progress)

    # -- use -----------------------------------------------------------------------------------------------------

    def predictor(self) -> type[ClassAnswers]:
        from hamburger.classification.predict import ClassAnswers

        return ClassAnswers

    def visualizer(self) -> type[ClassShowing]:
        from hamburger.classification.visualize import ClassShowing

        return ClassShowing

    def export_spec(self, info: Info) -> ExportSpec:
        return ExportSpec(size=(info.extra["size"],) * 2, predictions="images")


CLASSIFICATION = ClassificationTask()
