"""Detection and instance segmentation as a task: a class, a box and a mask for every object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.detection.recipe import DetectionRecipe, check_detection_recipe, detection_recipes
from hamburger.registry import Registry
from hamburger.training.datasets import check_classes, check_each, check_same_classes, digest_splits
from hamburger.training.loader import batch_options
from hamburger.training.task import SINGLE_SCALE, EvaluationProtocol, Score, Task
from hamburger.training.task_outputs import ExportSpec

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.detection.data import DetectionSet
    from hamburger.detection.data.batches import SceneBatch, SceneBatches
    from hamburger.detection.evaluate import DetectionScores
    from hamburger.detection.model import Detector
    from hamburger.detection.predict import ObjectPredictor
    from hamburger.detection.visualize import ObjectVisualizer


class DetectionSplits(NamedTuple):
    """The two data sets of a recipe."""

    train: DetectionSet
    val: DetectionSet

    @classmethod
    def of(cls, recipe: DetectionRecipe, root: Path | None) -> DetectionSplits:
        from hamburger.detection.data import create_detection_set

        data = recipe.data
        splits = (data.train_split, data.val_split)
        train, val = (create_detection_set(data.name, split, root, **data.options) for split in splits)
        check_same_classes(data, train.classes, val.classes)
        return cls(train, val)

    def check(self) -> None:
        from hamburger.detection.data.checks import check_scenes

        check_each(self, check_scenes)

    def digest(self) -> str:
        """A hash of the images and annotations: one file holds all annotations, so any tool may change them at once."""
        return " ".join([digest_splits(self), *(each.digest for each in self if each.digest)])


class DetectionTask(Task[DetectionRecipe]):
    name = "detection"
    networks = "Mask R-CNN"
    recipe = DetectionRecipe
    recipes = detection_recipes
    scores = (Score("mask_map", "mask mAP"), Score("box_map", "box mAP"))
    pooled = "COCO's average over ten overlaps from 0.5 to 0.95 and over classes, at most 100 objects an image"
    member_score = Score("per_class", "mask mAP")
    fixed_batch_size = False  # the number of boxes changes

    def check(self, recipe: DetectionRecipe, *, processes: int = 1) -> None:
        check_detection_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: DetectionRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> DetectionSplits:
        sets = DetectionSplits.of(recipe, root)
        if first:
            sets.check()
            for each in sets:
                dropped = getattr(each, "dropped", 0)
                if dropped:
                    note(f"{each.name}, split '{each.split}': {dropped} invalid annotations are left out")
        return sets

    def build(self, recipe: DetectionRecipe, data: DetectionSplits) -> Detector:
        from hamburger.detection.model import create_detector

        return create_detector(**asdict(recipe.model), num_classes=len(data.train.classes))

    def batches(self, recipe: DetectionRecipe, data: DetectionSplits, device: torch.device) -> SceneBatches:
        from hamburger.detection.data.batches import SceneBatches

        return SceneBatches(
            data.train,
            crop=recipe.data.crop,
            scales=recipe.data.scales,
            flip=recipe.data.flip,
            pad=recipe.data.pad,
            **batch_options(recipe, device),
        )

    def losses(self, model: nn.Module, micro_batch: SceneBatch, recipe: DetectionRecipe) -> dict[str, Tensor]:
        """Every term is a mean over images or sampled boxes, so micro-batches of equal size weigh the same."""
        terms: dict[str, Tensor] = model(micro_batch.images, micro_batch.targets)
        return terms

    def info(self, recipe: DetectionRecipe, data: DetectionSplits) -> Info:
        from hamburger.checkpoints.weights_file import Info

        chosen = recipe.data
        extra: dict[str, Any] = {"recipe": recipe.name, "data": chosen.name, "data_options": chosen.options}
        return Info(classes=data.val.classes, palette=data.val.palette, extra=extra | {"val_split": chosen.val_split})

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

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        from hamburger.detection.model import save_detector

        save_detector(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[Detector, Info]:
        from hamburger.detection.model import load_detector

        return load_detector(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def datasets(self) -> Registry[Any]:
        from hamburger.detection.data import detection_sets

        return detection_sets

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> DetectionSet:
        from hamburger.detection.data import create_detection_set
        from hamburger.detection.data.checks import check_scenes

        scenes = create_detection_set(name, split, root, **options)
        if whole:
            check_scenes(scenes)
        return scenes

    def fits(self, call: str, info: Info, split: DetectionSet) -> None:
        check_classes(call, info.classes, split)

    def evaluate(
        self,
        net: nn.Module,
        split: DetectionSet,
        info: Info,
        *,
        device: torch.device,
        batch: int = 128,
        workers: int = 4,
        channels_last: bool = False,
        protocol: EvaluationProtocol = SINGLE_SCALE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> DetectionScores:
        """Images are evaluated one by one whatever `batch` is, so that a result depends on nothing but the image."""
        from hamburger.detection.evaluate import evaluate_detector

        return evaluate_detector(net, split, device=device, workers=workers, progress=progress)

    # -- use -----------------------------------------------------------------------------------------------------

    def predictor(self) -> type[ObjectPredictor]:
        from hamburger.detection.predict import ObjectPredictor

        return ObjectPredictor

    def visualizer(self) -> type[ObjectVisualizer]:
        from hamburger.detection.visualize import ObjectVisualizer

        return ObjectVisualizer

    def export_spec(self, info: Info) -> ExportSpec:
        from hamburger.detection.export import detector_export_spec

        return detector_export_spec(info.model["size"])


DETECTION = DetectionTask()
