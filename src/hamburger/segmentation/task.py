"""Semantic segmentation as a task: a class for every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.distributed import micro_batch_shares
from hamburger.errors import CheckpointError
from hamburger.registry import Registry, options_of
from hamburger.segmentation.recipe import SegmentationRecipe, check_segmentation_recipe, segmentation_recipes
from hamburger.training.datasets import check_classes, check_each, digest_splits
from hamburger.training.loader import batch_options, to_layout
from hamburger.training.run_folder import ANGLES, BEST, RunFolder
from hamburger.training.task import SINGLE_SCALE, EvaluationProtocol, Score, Task
from hamburger.training.task_outputs import SEGMENTATION_EXPORT, ExportSpec

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.segmentation.data.base import SegmentationSet
    from hamburger.segmentation.data.batches import SegmentationBatch, SegmentationBatches
    from hamburger.segmentation.evaluate import SegmentationScores
    from hamburger.segmentation.model import Segmenter
    from hamburger.segmentation.predict import SegmentationPredictor
    from hamburger.segmentation.visualize import SegmentationVisualizer
    from hamburger.training.trainer import Trainer


class SegmentationSplits(NamedTuple):
    train: SegmentationSet
    val: SegmentationSet

    @classmethod
    def of(cls, recipe: SegmentationRecipe, root: Path | None) -> SegmentationSplits:
        from hamburger.segmentation.data import create_dataset

        splits = (recipe.data.train_split, recipe.data.val_split)
        return cls(*(create_dataset(recipe.data.name, split, root=root, **recipe.data.options) for split in splits))

    def check(self) -> None:
        from hamburger.segmentation.data.checks import check_dataset

        check_each(self, check_dataset)

    def digest(self) -> str:
        return digest_splits(self)


def build_segmenter(recipe: SegmentationRecipe, k: int) -> Segmenter:
    """Return the network on the CPU with its initial weights."""
    from hamburger.layers.norm import set_bn_momentum
    from hamburger.segmentation.gradient_angles import check_has_ham
    from hamburger.segmentation.model import create_model

    net = create_model(**asdict(recipe.model), num_classes=k)
    set_bn_momentum(net, recipe.bn_momentum)
    if recipe.start is not None:
        _copy_weights(Path(recipe.start), net)
    if recipe.angles_every:
        check_has_ham(net)
    return net


def _copy_weights(start: Path, net: Segmenter) -> None:
    from hamburger.segmentation.weights import load_weights

    path = start / BEST if start.is_dir() else start
    if not path.is_file():
        raise CheckpointError(f"train: there are no weights at {start}; --set start=RUN_OR_WEIGHTS, or start=none")
    other, _ = load_weights(path)
    try:
        net.load_state_dict(other.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            f"train: the weights in {path} do not fit the recipe's network: {str(error).splitlines()[1:3]}"
        ) from None


class SegmentationTask(Task[SegmentationRecipe]):
    name = "segmentation"
    networks = "HamNet"
    recipe = SegmentationRecipe
    recipes = segmentation_recipes
    scores = (Score("miou", "mIoU"), Score("pixel_accuracy", "pixel accuracy"))
    pooled = "pooled over the whole validation split; pixels without a label do not count"
    member_score = Score("per_class", "IoU")
    test_time_augmentation = True

    def check(self, recipe: SegmentationRecipe, *, processes: int = 1) -> None:
        check_segmentation_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: SegmentationRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> SegmentationSplits:
        splits = SegmentationSplits.of(recipe, root)
        if first:
            splits.check()
        return splits

    def build(self, recipe: SegmentationRecipe, data: SegmentationSplits) -> Segmenter:
        return build_segmenter(recipe, len(data.train.classes))

    def batches(
        self, recipe: SegmentationRecipe, data: SegmentationSplits, device: torch.device
    ) -> SegmentationBatches:
        from hamburger.segmentation.data.batches import SegmentationBatches

        info = self.info(recipe, data)
        return SegmentationBatches(
            data.train,
            crop=recipe.data.crop,
            scales=recipe.data.scales,
            flip=recipe.data.flip,
            mean=info.mean,
            std=info.std,
            **batch_options(recipe, device),
        )

    def losses(self, model: nn.Module, micro_batch: SegmentationBatch, recipe: SegmentationRecipe) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = model(to_layout(micro_batch.images, recipe), micro_batch.labels)
        return terms

    def loss_weights(self, net: Any, micro_batches: Sequence[SegmentationBatch]) -> list[dict[str, Tensor]]:
        """Terms are means over the labelled pixels (""), unless the head counts something else for them."""
        from hamburger.segmentation.losses import IGNORE

        counts = [{"": (part.labels != IGNORE).sum(), **net.head.counts(part.labels)} for part in micro_batches]
        shares = {name: micro_batch_shares([count[name] for count in counts]) for name in counts[0]}
        return [{name: share[i] for name, share in shares.items()} for i in range(len(micro_batches))]

    def before_step(
        self, trainer: Trainer[SegmentationRecipe], step: int, micro_batches: Sequence[SegmentationBatch]
    ) -> None:
        """Compare the gradient strategies of the hams on the first micro-batch, every `angles_every` steps."""
        recipe = trainer.recipe
        if not recipe.angles_every or step % recipe.angles_every:
            return
        from hamburger.segmentation.gradient_angles import measure_angles

        trainer.lap()

        def loss() -> Tensor:  # of the bare network: its gradients must not be averaged over the processes
            with trainer.accelerator.autocast():
                return torch.stack(list(self.losses(trainer.net, micro_batches[0], recipe).values())).sum()

        angles = measure_angles(trainer.net, loss)
        if trainer.first:
            trainer.write({"step": step, ANGLES: angles})
        trainer.clock.start()

    def info(self, recipe: SegmentationRecipe, data: SegmentationSplits) -> Info:
        from hamburger.checkpoints.weights_file import Info

        data_recipe = recipe.data
        extra = {"recipe": recipe.name, "data": data_recipe.name, "data_options": data_recipe.options}
        extra["val_split"] = data_recipe.val_split
        return Info(classes=data.train.classes, palette=data.train.palette, extra=extra)

    def about(self, recipe: SegmentationRecipe) -> dict[str, Any]:
        from hamburger.segmentation.heads.base import heads

        model = recipe.model
        # a head without the option is named as its own context
        context = model.context if "context" in options_of(heads[model.name]) else model.name
        return {"model": model.name, "backbone": model.backbone, "context": context}

    def notes(self, recipe: SegmentationRecipe, net: Any) -> Iterable[str]:
        report = getattr(net.backbone, "report", None)
        if report is not None:
            yield str(report).splitlines()[0]
        if recipe.model.backbone.startswith("resnet") and not (recipe.model.pretrained or recipe.start):
            yield "the backbone starts from random weights; --set model.pretrained=FILE loads pretrained ones"

    def extra_results(self, recipe: SegmentationRecipe, folder: RunFolder) -> dict[str, Any]:
        return {ANGLES: folder.angles()} if recipe.angles_every else {}

    def changed_data_advice(self, folder: Path) -> str:
        return (
            "the images or classes of a split differ from those of the run; pass the same --data, or start a new run "
            f"with --set start={folder}"
        )

    def restart_advice(self, folder: Path) -> str:
        has_best = (folder / BEST).exists()
        return "begin a new run" + (f", from the best weights so far with --set start={folder}" if has_best else "")

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        from hamburger.segmentation.weights import save_weights

        save_weights(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[Segmenter, Info]:
        from hamburger.segmentation.weights import load_weights

        return load_weights(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def datasets(self) -> Registry[Any]:
        from hamburger.segmentation.data import datasets

        return datasets

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> SegmentationSet:
        from hamburger.segmentation.data import create_dataset
        from hamburger.segmentation.data.checks import check_dataset

        images = create_dataset(name, split, root=root, **options)
        if whole:
            check_dataset(images)
        return images

    def fits(self, call: str, info: Info, split: SegmentationSet) -> None:
        check_classes(call, info.classes, split)

    def evaluate(
        self,
        net: nn.Module,
        split: SegmentationSet,
        info: Info,
        *,
        device: torch.device,
        batch: int = 128,
        workers: int = 4,
        channels_last: bool = False,
        protocol: EvaluationProtocol = SINGLE_SCALE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> SegmentationScores:
        """Return the scores; images run one by one whatever `batch` is, so that a result depends on the image alone."""
        from hamburger.segmentation.evaluate import evaluate_segmenter

        return evaluate_segmenter(
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

    def evaluate_variants(
        self, net: Any, split: SegmentationSet, info: Info, variants: Sequence[Callable[[], object]], **options: Any
    ) -> list[SegmentationScores]:
        from hamburger.segmentation.evaluate import evaluate_variants

        return evaluate_variants(net, split, variants, mean=info.mean, std=info.std, **{"workers": 4, **options})

    # -- use -----------------------------------------------------------------------------------------------------

    def predictor(self) -> type[SegmentationPredictor]:
        from hamburger.segmentation.predict import SegmentationPredictor

        return SegmentationPredictor

    def visualizer(self) -> type[SegmentationVisualizer]:
        from hamburger.segmentation.visualize import SegmentationVisualizer

        return SegmentationVisualizer

    def export_spec(self, info: Info) -> ExportSpec:
        return SEGMENTATION_EXPORT


SEGMENTATION = SegmentationTask()
