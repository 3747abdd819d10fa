"""Detection and instance segmentation as a task: a class, a box and a mask for every object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hamburger.checkpoints.weights_file import Info
from hamburger.detection.data import DetectionSet, create_detection_set, detection_sets
from hamburger.detection.data.batches import SceneBatch, SceneBatches
from hamburger.detection.data.checks import check_scenes
from hamburger.detection.evaluate import DetectionScores, evaluate_detector
from hamburger.detection.predict import ObjectAnswers
from hamburger.detection.recipe import DETECTION, DetectionRecipe
from hamburger.detection.visualize import ObjectShowing
from hamburger.training.builders import check_alike, check_classes, check_each, digest_of, shared
from hamburger.training.task import SINGLE, Graph, Protocol, Task
from hamburger.training.trainer import Supervised

if TYPE_CHECKING:
    from hamburger.detection.model import Detector


class SceneSets(NamedTuple):
    train: DetectionSet
    val: DetectionSet

    @classmethod
    def of(cls, recipe: DetectionRecipe, root: Path | None) -> SceneSets:
        asked = recipe.data
        splits = (asked.train_split, asked.val_split)
        train, val = (create_detection_set(asked.name, split, root, **asked.options) for split in splits)
        check_alike(asked, train.classes, val.classes)
        return cls(train, val)

    def check(self) -> None:
        check_each(self, check_scenes)

    def digest(self) -> str:
        """Annotations count too: one file holds those of all images, and a tool that adds some writes it anew."""
        return " ".join([digest_of(self), *(each.digest for each in self if each.digest)])


# ----------------------------------------------------------------------------------------------------------------------
# The training loop of a detector: boxes, classes and masks at once.


class DetectionLoop(Supervised[DetectionRecipe]):
    def losses(self, parts: Sequence[SceneBatch]) -> Callable[[int], dict[str, Tensor]]:
        """Every term is a mean over images or sampled boxes, so that parts of equal size weigh the same."""

        def terms(i: int) -> dict[str, Tensor]:
            found: dict[str, Tensor] = self.model(parts[i].images, parts[i].targets)
            return {name: value / len(parts) for name, value in found.items()}

        return terms

    def other_data(self) -> str:
        return (
            "the images, the classes or the annotations (boxes, masks) of a split are not those it was trained on; "
            "give the same --data with its files as they were, or begin a new run"
        )


# ----------------------------------------------------------------------------------------------------------------------
# Detection and instance segmentation: a class, a box and a mask for every object.


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
        from hamburger.detection.model import create_detector

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
        from hamburger.detection.model import save_detector

        save_detector(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[Detector, Info]:
        from hamburger.detection.model import load_detector

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
        from hamburger.detection.export import objects

        return objects(info.model["size"])
