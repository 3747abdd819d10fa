"""Semantic segmentation: a class for every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hamburger.data import SegmentationSet, create_dataset, datasets
from hamburger.engine.assemble import Sets, build, feed
from hamburger.engine.evaluate import Scores, check_classes, evaluate, evaluate_ways
from hamburger.engine.graph import PIXELS, Graph
from hamburger.engine.loop import Loop
from hamburger.engine.probabilities import SINGLE, Protocol
from hamburger.engine.task import Task
from hamburger.heads.base import heads
from hamburger.models.info import Info
from hamburger.models.segmenter import Segmenter
from hamburger.models.weights import load_weights, save_weights
from hamburger.recipes.base import Recipe
from hamburger.recipes.kinds import SEGMENTATION
from hamburger.registry import options_of
from hamburger.use.segments import SegmentAnswers
from hamburger.use.showing import SegmentShowing

if TYPE_CHECKING:
    from hamburger.data.batches import Batches


class Segmentation(Task[Recipe]):
    kind = SEGMENTATION
    loop = Loop
    views = True
    sets = datasets
    answers = SegmentAnswers
    showing = SegmentShowing

    # -- training ------------------------------------------------------------------------------------------------

    def open(self, recipe: Recipe, root: Path | None, *, first: bool, note: Callable[[str], object]) -> Sets:
        sets = Sets.of(recipe, root)
        if first:
            sets.check()
        return sets

    def build(self, recipe: Recipe, data: Sets) -> Segmenter:
        return build(recipe, len(data.train.classes))

    def batches(self, recipe: Recipe, data: Sets, device: torch.device) -> Batches:
        return feed(recipe, device, data.train, self.info(recipe, data))

    def info(self, recipe: Recipe, data: Sets) -> Info:
        asked = recipe.data
        extra = {"recipe": recipe.name, "data": asked.name, "data_options": asked.options, "val_split": asked.val_split}
        return Info(classes=data.train.classes, palette=data.train.palette, extra=extra)

    def about(self, recipe: Recipe) -> dict[str, Any]:
        model = recipe.model
        # a head that is a whole system is its own context
        context = model.context if "context" in options_of(heads[model.name]) else model.name
        return {"model": model.name, "backbone": model.backbone, "context": context}

    def notes(self, recipe: Recipe, net: Any) -> Iterable[str]:
        report = getattr(net.backbone, "report", None)
        if report is not None:
            yield str(report).splitlines()[0]
        if recipe.model.backbone.startswith("resnet") and not (recipe.model.pretrained or recipe.start):
            yield "the backbone starts from random weights; --set model.pretrained=FILE gives it others"

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        save_weights(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[Segmenter, Info]:
        return load_weights(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> SegmentationSet:
        from hamburger.data.checks import check

        images = create_dataset(name, split, root=root, **options)
        if whole:
            check(images)
        return images

    def fits(self, call: str, info: Info, split: SegmentationSet) -> None:
        check_classes(call, info.classes, split)

    def evaluate(
        self,
        net: torch.nn.Module,
        split: SegmentationSet,
        info: Info,
        *,
        device: torch.device,
        batch: int = 128,
        workers: int = 4,
        channels_last: bool = False,
        protocol: Protocol = SINGLE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> Scores:
        """One by one whatever `batch` says: then nothing but the image decides."""
        return evaluate(
            net,
            split,
            device=device,
            mean=info.mean,
            std=info.std,
            protocol=protocol,
            channels_last=channels_last,
            workers=workers,
            progress=progress,
        )

    def evaluate_ways(
        self, net: Any, split: SegmentationSet, info: Info, ways: Sequence[Callable[[], object]], **options: Any
    ) -> list[Scores]:
        return evaluate_ways(net, split, ways, mean=info.mean, std=info.std, **{"workers": 4, **options})

    # -- use -----------------------------------------------------------------------------------------------------

    def graph(self, info: Info) -> Graph:
        return PIXELS
