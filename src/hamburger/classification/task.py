"""Image classification as a task: a class for every image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.checkpoints.weights_file import Info
from hamburger.classification.data import image_sources
from hamburger.classification.data.batches import Feed, ImageBatch
from hamburger.classification.data.load import ImageSet, load_images, open_source
from hamburger.classification.evaluate import ClassScores, evaluate_classes
from hamburger.classification.model import Classifier, create_classifier, load_classifier, save_classifier
from hamburger.classification.predict import ClassAnswers
from hamburger.classification.recipe import CLASSES, ClassificationRecipe
from hamburger.classification.visualize import ClassShowing
from hamburger.training.builders import batch_options, check_same_classes
from hamburger.training.export_spec import ExportSpec
from hamburger.training.protocol import SINGLE_SCALE, EvaluationProtocol
from hamburger.training.task import Task
from hamburger.training.trainer import Supervised


class Splits(NamedTuple):
    train: ImageSet
    val: ImageSet

    @classmethod
    def of(
        cls, recipe: ClassificationRecipe, root: Path | None, *, verify: bool, note: Callable[[str], object]
    ) -> Splits:
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


# ----------------------------------------------------------------------------------------------------------------------
# The training loop of a classifier: one label an image.


class ClassLoop(Supervised[ClassificationRecipe]):
    def feed(self, start: int, stop: int) -> Iterator[tuple[int, Sequence[ImageBatch]]]:
        batches: Any = self.batches.run(start, stop)
        with closing(batches):
            yield from enumerate(batches, start=start)

    def losses(self, parts: Sequence[ImageBatch]) -> Callable[[int], dict[str, Tensor]]:
        return lambda i: {"cross_entropy": self._cross_entropy(parts[i]) / len(parts)}

    def _cross_entropy(self, part: ImageBatch) -> Tensor:
        return F.cross_entropy(self.model(self.laid(part.images)).float(), part.labels)


# ----------------------------------------------------------------------------------------------------------------------
# Image classification: a class for every image.


class Classes(Task[ClassificationRecipe]):
    kind = CLASSES
    loop = ClassLoop
    sets = image_sources
    answers = ClassAnswers
    showing = ClassShowing

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: ClassificationRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> Splits:
        return Splits.of(recipe, root, verify=first, note=note)

    def build(self, recipe: ClassificationRecipe, data: Splits) -> Classifier:
        return create_classifier(**asdict(recipe.model), num_classes=len(data.train.classes), size=recipe.data.size)

    def batches(self, recipe: ClassificationRecipe, data: Splits, device: torch.device) -> Feed:
        return Feed(
            data.train,
            flip=recipe.data.flip,
            **batch_options(recipe, device),
        )

    def info(self, recipe: ClassificationRecipe, data: Splits) -> Info:
        asked = recipe.data
        extra: dict[str, Any] = {"recipe": recipe.name, "data": asked.name, "data_options": asked.options}
        return Info(classes=data.val.classes, extra=extra | {"val_split": asked.val_split, "size": asked.size})

    def about(self, recipe: ClassificationRecipe) -> dict[str, Any]:
        model = recipe.model
        after = model.after if model.context is not None else None
        return {"backbone": model.backbone, "context": model.context, "after": after, "data": recipe.data.name}

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        save_classifier(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[Classifier, Info]:
        return load_classifier(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> ImageSet:
        source = open_source(name, split, size=info.extra["size"], root=root, **options)
        return load_images(source, verify=whole)

    def evaluate(
        self,
        net: torch.nn.Module,
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
        return evaluate_classes(net, split, device=device, batch=batch, channels_last=channels_last, progress=progress)

    # -- use -----------------------------------------------------------------------------------------------------

    def graph(self, info: Info) -> ExportSpec:
        return ExportSpec(size=(info.extra["size"],) * 2, answer="images")
