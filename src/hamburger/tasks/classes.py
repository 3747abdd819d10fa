"""Image classification: a class for every image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hamburger.data.generation import image_sources
from hamburger.data.generation.feed import Feed
from hamburger.data.generation.load import ImageSet, load_images, open_source
from hamburger.engine.assemble import shared
from hamburger.engine.classes.data import Splits
from hamburger.engine.classes.evaluate import ClassScores, evaluate_classes
from hamburger.engine.classes.loop import ClassLoop
from hamburger.engine.graph import Graph
from hamburger.engine.probabilities import SINGLE, Protocol
from hamburger.engine.task import Task
from hamburger.models.classifier import Classifier, create_classifier, load_classifier, save_classifier
from hamburger.models.info import Info
from hamburger.recipes.class_base import ClassRecipe
from hamburger.recipes.kinds import CLASSES
from hamburger.use.classes.answers import ClassAnswers
from hamburger.use.classes.showing import ClassShowing


class Classes(Task[ClassRecipe]):
    kind = CLASSES
    loop = ClassLoop
    sets = image_sources
    answers = ClassAnswers
    showing = ClassShowing

    # -- training ------------------------------------------------------------------------------------------------

    def open(self, recipe: ClassRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]) -> Splits:
        return Splits.of(recipe, root, verify=first, note=note)

    def build(self, recipe: ClassRecipe, data: Splits) -> Classifier:
        return create_classifier(**asdict(recipe.model), num_classes=len(data.train.classes), size=recipe.data.size)

    def batches(self, recipe: ClassRecipe, data: Splits, device: torch.device) -> Feed:
        return Feed(
            data.train,
            flip=recipe.data.flip,
            **shared(recipe, device),
        )

    def info(self, recipe: ClassRecipe, data: Splits) -> Info:
        asked = recipe.data
        extra: dict[str, Any] = {"recipe": recipe.name, "data": asked.name, "data_options": asked.options}
        return Info(classes=data.val.classes, extra=extra | {"val_split": asked.val_split, "size": asked.size})

    def about(self, recipe: ClassRecipe) -> dict[str, Any]:
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
        protocol: Protocol = SINGLE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> ClassScores:
        return evaluate_classes(net, split, device=device, batch=batch, channels_last=channels_last, progress=progress)

    # -- use -----------------------------------------------------------------------------------------------------

    def graph(self, info: Info) -> Graph:
        return Graph(size=(info.extra["size"],) * 2, answer="images")
