"""Detection and instance segmentation: a class, a box and a mask for every object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hamburger.data.detection import DetectionSet, create_detection_set, detection_sets
from hamburger.data.detection.batches import SceneBatches
from hamburger.data.detection.checks import check_scenes
from hamburger.engine.assemble import shared
from hamburger.engine.detection.data import SceneSets
from hamburger.engine.detection.evaluate import DetectionScores, evaluate_detector
from hamburger.engine.detection.loop import DetectionLoop
from hamburger.engine.evaluate import check_classes
from hamburger.engine.graph import Graph
from hamburger.engine.probabilities import SINGLE, Protocol
from hamburger.engine.task import Task
from hamburger.models.info import Info
from hamburger.recipes.detect_base import DetectionRecipe
from hamburger.recipes.kinds import DETECTION
from hamburger.use.detection.answers import ObjectAnswers
from hamburger.use.detection.showing import ObjectShowing

if TYPE_CHECKING:
    # torchvision takes a second to load, and other tasks do without it
    from hamburger.models.detector import Detector


class Detection(Task[DetectionRecipe]):
    kind = DETECTION
    loop = DetectionLoop
    steady = False  # the heads see as many boxes as there are
    sets = detection_sets
    answers = ObjectAnswers
    showing = ObjectShowing

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: DetectionRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> SceneSets:
        sets = SceneSets.of(recipe, root)
        if first:
            sets.check()
            for each in sets:
                dropped = getattr(each, "dropped", 0)
                if dropped:
                    note(f"{each.name}, split '{each.split}': {dropped} broken annotations are left out")
        return sets

    def build(self, recipe: DetectionRecipe, data: SceneSets) -> Detector:
        from hamburger.models.detector import create_detector

        return create_detector(**asdict(recipe.model), num_classes=len(data.train.classes))

    def batches(self, recipe: DetectionRecipe, data: SceneSets, device: torch.device) -> SceneBatches:
        return SceneBatches(
            data.train,
            crop=recipe.data.crop,
            scales=recipe.data.scales,
            flip=recipe.data.flip,
            pad=recipe.data.pad,
            **shared(recipe, device),
        )

    def info(self, recipe: DetectionRecipe, data: SceneSets) -> Info:
        asked = recipe.data
        extra: dict[str, Any] = {"recipe": recipe.name, "data": asked.name, "data_options": asked.options}
        return Info(classes=data.val.classes, palette=data.val.palette, extra=extra | {"val_split": asked.val_split})

    def about(self, recipe: DetectionRecipe) -> dict[str, Any]:
        model = recipe.model
        after = model.after if model.context is not None else None
        return {"backbone": model.backbone, "context": model.context, "after": after, "data": recipe.data.name}

    def notes(self, recipe: DetectionRecipe, net: Any) -> Iterable[str]:
        report = getattr(net.net.backbone, "report", None)
        if report is not None:
            yield str(report).splitlines()[0]

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        from hamburger.models.detector import save_detector

        save_detector(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[Detector, Info]:
        from hamburger.models.detector import load_detector

        return load_detector(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> DetectionSet:
        scenes = create_detection_set(name, split, root, **options)
        if whole:
            check_scenes(scenes)
        return scenes

    def fits(self, call: str, info: Info, split: DetectionSet) -> None:
        check_classes(call, info.classes, split)

    def evaluate(
        self,
        net: torch.nn.Module,
        split: DetectionSet,
        info: Info,
        *,
        device: torch.device,
        batch: int = 128,
        workers: int = 4,
        channels_last: bool = False,
        protocol: Protocol = SINGLE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> DetectionScores:
        """One by one whatever `batch` says: then nothing but the image decides."""
        return evaluate_detector(net, split, device=device, workers=workers, progress=progress)

    # -- use -----------------------------------------------------------------------------------------------------

    def graph(self, info: Info) -> Graph:
        from hamburger.use.detection.graph import objects

        return objects(info.model["size"])
