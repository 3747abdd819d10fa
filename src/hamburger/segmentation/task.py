"""Semantic segmentation as a task: a class for every pixel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.distributed import micro_batch_shares
from hamburger.errors import CheckpointError, InputError
from hamburger.inference.export import SEGMENTATION_EXPORT, ExportSpec
from hamburger.inference.find_weights import find_weights, shipped_file
from hamburger.layers.norm import set_bn_momentum
from hamburger.registry import options_of
from hamburger.segmentation.data import SegmentationSet, datasets
from hamburger.segmentation.data.batches import SegmentationBatch, SegmentationBatches
from hamburger.segmentation.data.checks import check_dataset
from hamburger.segmentation.evaluate import SegmentationScores, evaluate_segmenter
from hamburger.segmentation.losses import IGNORE
from hamburger.segmentation.model import Segmenter, create_model, describe_network, load_weights, models
from hamburger.segmentation.predict import SegmentationPredictor, SegmentationVisualizer
from hamburger.segmentation.recipe import SegmentationRecipe, check_segmentation_recipe, segmentation_recipes
from hamburger.training.datasets import Progress, check_each
from hamburger.training.loader import batch_options, to_layout
from hamburger.training.run_folder import BEST
from hamburger.training.supervised import Splits, describe_data
from hamburger.training.task import Metric, NoteWriter, Task

SegmentationSplits = Splits[SegmentationSet]


def find_start(recipe: SegmentationRecipe) -> Path | None:
    """The file of the recipe's initial weights; None where it names none."""
    if recipe.start is None:
        return None
    if shipped_file(recipe.start) is None and not Path(recipe.start).exists():
        raise InputError(
            f"train: the recipe '{recipe.name}' starts from weights that are not here (got start={recipe.start}); name "
            "a run, a file or a name of `ham list weights` with --set start=..., or take timm's encoder with "
            "--set start=none --set model.pretrained=timm"
        )
    return find_weights(recipe.start)


def _copy_weights(path: Path, net: Segmenter) -> None:
    """Load the weights of a file; where it has other classes, the classifier keeps its initial weights."""
    other, _ = load_weights(path)
    values, known = other.state_dict(), net.state_dict()
    counts = other.num_classes, net.num_classes
    per_class = {name for name, value in values.items() if name in known and value.shape != known[name].shape}
    if counts[0] != counts[1] and all((len(values[name]), len(known[name])) == counts for name in per_class):
        values |= {name: known[name] for name in per_class}
    try:
        net.load_state_dict(values)
    except RuntimeError as error:
        raise CheckpointError(
            f"train: the weights in {path} do not fit the recipe's network: {str(error).splitlines()[1:3]}"
        ) from None


class SegmentationTask(Task[SegmentationRecipe]):
    name = "segmentation"
    networks = "HamNet"
    recipe = SegmentationRecipe
    recipes = segmentation_recipes
    datasets = datasets
    predictor = SegmentationPredictor
    visualizer = SegmentationVisualizer
    metrics = (Metric("miou", "mIoU"), Metric("pixel_accuracy", "pixel accuracy"))
    pooled = "pooled over the whole validation split; pixels without a label do not count"
    member_metric = Metric("per_class", "IoU")
    single_class = True
    test_time_augmentation = True

    def check(self, recipe: SegmentationRecipe, *, processes: int = 1) -> None:
        check_segmentation_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def check_data(
        self, recipe: SegmentationRecipe, data: SegmentationSplits, note: NoteWriter, progress: Progress
    ) -> None:
        find_start(recipe)  # reading the data may take minutes
        for findings in check_each(data, check_dataset, progress):
            for line in findings.notes:
                note(line)

    def build(self, recipe: SegmentationRecipe, data: SegmentationSplits) -> Segmenter:
        model = asdict(recipe.model)
        if recipe.model.context is None:  # the options are those of the context that `--set model.context=none` removed
            model["context_options"] = {}
        net = create_model(**model, num_classes=len(data.train.classes))
        set_bn_momentum(net, recipe.bn_momentum)
        if (start := find_start(recipe)) is not None:
            _copy_weights(start, net)
        return net

    def batches(
        self, recipe: SegmentationRecipe, data: SegmentationSplits, device: torch.device
    ) -> SegmentationBatches:
        views = {name: getattr(recipe.data, name) for name in ("crop", "scales", "flip", "photometric")}
        return SegmentationBatches(data.train, **views, **batch_options(recipe, device))

    def losses(self, model: nn.Module, micro_batch: SegmentationBatch, recipe: SegmentationRecipe) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = model(to_layout(micro_batch.images, recipe), micro_batch.labels)
        return terms

    def loss_weights(self, net: Any, micro_batches: Sequence[SegmentationBatch]) -> list[dict[str, Tensor]]:
        """Terms are means over the labelled pixels (""), unless the head counts something else for them."""
        counts = [{"": (part.labels != IGNORE).sum(), **net.head.counts(part.labels)} for part in micro_batches]
        shares = {name: micro_batch_shares([count[name] for count in counts]) for name in counts[0]}
        return [{name: share[i] for name, share in shares.items()} for i in range(len(micro_batches))]

    def info(self, recipe: SegmentationRecipe, data: SegmentationSplits) -> Info:
        return Info(
            classes=data.train.classes,
            palette=data.train.palette,
            side=recipe.data.side,
            extra=describe_data(recipe),
        )

    def about(self, recipe: SegmentationRecipe) -> dict[str, Any]:
        model = recipe.model
        # a head without the option is named as its own context
        context = model.context if "context" in options_of(models[model.name]) else model.name
        return {"model": model.name, "backbone": model.backbone, "context": context}

    def notes(self, recipe: SegmentationRecipe, net: Any) -> Iterable[str]:
        report = getattr(net.backbone, "report", None)
        if report is not None:
            yield str(report).splitlines()[0]
        if recipe.model.backbone.startswith("resnet") and not (recipe.model.pretrained or recipe.start):
            yield "the backbone starts from random weights; --set model.pretrained=FILE loads pretrained ones"

    def changed_data_advice(self, folder: Path) -> str:
        return (
            "the images or classes of a split differ from those of the run; pass the same --data, or start a new run "
            f"with --set start={folder}"
        )

    def restart_advice(self, folder: Path) -> str:
        has_best = (folder / BEST).exists()
        return "begin a new run" + (f", from the best weights so far with --set start={folder}" if has_best else "")

    # -- weights -------------------------------------------------------------------------------------------------

    def describe(self, net: Any, info: Info) -> Info:
        return describe_network(net, info)

    def load(self, path: Path) -> tuple[Segmenter, Info]:
        return load_weights(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def check_split(self, split: SegmentationSet) -> None:
        check_dataset(split)

    def evaluate(
        self, net: nn.Module, split: SegmentationSet, info: Info, *, batch: int = 1, workers: int = 4, **options: Any
    ) -> SegmentationScores:
        """Return the scores; images run one by one whatever `batch` is, so that a result depends on the image alone."""
        return evaluate_segmenter(net, split, mean=info.mean, std=info.std, workers=workers, **options)

    # -- use -----------------------------------------------------------------------------------------------------

    def export_spec(self, info: Info) -> ExportSpec:
        return SEGMENTATION_EXPORT


SEGMENTATION = SegmentationTask()
