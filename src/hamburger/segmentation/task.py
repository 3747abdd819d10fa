"""Semantic segmentation as a task: a class for every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor

from hamburger import distributed
from hamburger.checkpoints.weights_file import Info
from hamburger.errors import CheckpointError
from hamburger.layers.norm import set_bn_momentum
from hamburger.registry import options_of
from hamburger.segmentation.data import create_dataset, datasets
from hamburger.segmentation.data.base import SegmentationSet
from hamburger.segmentation.evaluate import Scores, evaluate, evaluate_ways
from hamburger.segmentation.gradient_angles import check_has_ham, measure_angles
from hamburger.segmentation.heads.base import Head, heads
from hamburger.segmentation.losses import IGNORE
from hamburger.segmentation.model import Segmenter
from hamburger.segmentation.predict import SegmentAnswers
from hamburger.segmentation.recipe import SEGMENTATION, SegmentationRecipe
from hamburger.segmentation.visualize import SegmentShowing
from hamburger.segmentation.weights import load_weights, save_weights
from hamburger.training.builders import batch_options, check_classes, check_each, digest_splits
from hamburger.training.export_spec import SEGMENTATION_EXPORT, ExportSpec
from hamburger.training.loss_weighting import LABELLED_PIXELS
from hamburger.training.protocol import SINGLE_SCALE, EvaluationProtocol
from hamburger.training.run_folder import ANGLES, BEST
from hamburger.training.task import Task
from hamburger.training.trainer import Equipment, Supervised

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.segmentation.data.batches import Batch, Batches
    from hamburger.training.task import Task


class Sets(NamedTuple):
    train: SegmentationSet
    val: SegmentationSet

    @classmethod
    def of(cls, recipe: SegmentationRecipe, root: Path | None) -> Sets:
        splits = (recipe.data.train_split, recipe.data.val_split)
        return cls(*(create_dataset(recipe.data.name, split, root=root, **recipe.data.options) for split in splits))

    def check(self) -> None:
        from hamburger.segmentation.data.checks import check

        check_each(self, check)

    def digest(self) -> str:
        return digest_splits(self)


def build(recipe: SegmentationRecipe, k: int) -> Segmenter:
    """The network on the CPU, with the weights that it begins from."""
    from hamburger.segmentation.model import create_model

    net = create_model(**asdict(recipe.model), num_classes=k)
    set_bn_momentum(net, recipe.bn_momentum)
    if recipe.start is not None:
        _copy_weights(Path(recipe.start), net)
    return net


def _copy_weights(start: Path, net: Segmenter) -> None:
    from hamburger.segmentation.weights import load_weights

    path = start / BEST if start.is_dir() else start
    if not path.is_file():
        raise CheckpointError(
            f"train: there is nothing to start from at {start}; --set start=RUN_OR_WEIGHTS, or start=none"
        )
    other, _ = load_weights(path)
    try:
        net.load_state_dict(other.state_dict())
    except RuntimeError as misfit:
        raise CheckpointError(
            f"train: the weights in {path} are of another network than the recipe's: {str(misfit).splitlines()[1:3]}"
        ) from None


def feed(recipe: SegmentationRecipe, device: torch.device, dataset: SegmentationSet, info: Info) -> Batches:
    from hamburger.segmentation.data.batches import Batches

    return Batches(
        dataset,
        crop=recipe.data.crop,
        scales=recipe.data.scales,
        flip=recipe.data.flip,
        mean=info.mean,
        std=info.std,
        **batch_options(recipe, device),
    )


# ----------------------------------------------------------------------------------------------------------------------
# What the processes and the accumulated parts of a batch must do to be as one.


class Shares:
    """What each accumulated part weighs in the mean over the whole batch, term by term."""

    def __init__(self, parts: Sequence[Batch], head: Head) -> None:
        counts = [{LABELLED_PIXELS: (part.labels != IGNORE).sum(), **head.counts(part.labels)} for part in parts]
        self.shares: dict[str, Tensor] = {}
        for name in counts[0] if len(parts) > 1 else ():
            own = distributed.total(torch.stack([count[name] for count in counts])).float()
            self.shares[name] = own / own.sum().clamp_min(1)

    def weighted(self, terms: dict[str, Tensor], part: int) -> dict[str, Tensor]:
        """The terms of one part, so that their sums over the parts are those of the whole batch."""
        if not self.shares:  # the part is the batch
            return terms
        return {
            name: value * self.shares.get(name, self.shares[LABELLED_PIXELS])[part] for name, value in terms.items()
        }


# ----------------------------------------------------------------------------------------------------------------------
# The training loop of segmentation: what the steps of a segmentation network have of their own.


class Loop(Supervised[SegmentationRecipe]):
    def __init__(
        self, task: Task[SegmentationRecipe], recipe: SegmentationRecipe, data: Any, equipment: Equipment
    ) -> None:
        super().__init__(task, recipe, data, equipment)
        if recipe.angles_every:
            check_has_ham(self.net)

    def losses(self, parts: Sequence[Batch]) -> Callable[[int], dict[str, Tensor]]:
        shares = Shares(parts, self.net.head)
        return lambda i: shares.weighted(self._forward(parts[i]), i)

    def _forward(self, part: Batch) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.model(self.laid(part.images), part.labels)
        return terms

    def before_step(self, step: int, parts: Sequence[Batch]) -> None:
        """The gradients of this step by several strategies, where the recipe asks for them; of its first part."""
        every = self.recipe.angles_every
        if not every or step % every:
            return
        self.lap()
        first = parts[0]

        def loss() -> Tensor:  # of the network itself: nothing of this is to be joined with other processes
            with self.fabric.autocast():
                return torch.stack(list(self.net(self.laid(first.images), first.labels).values())).sum()

        found = measure_angles(self.net, loss)
        if self.first:
            self.write({"step": step, ANGLES: found})
        self.clock.start()

    def findings(self) -> dict[str, Any]:
        return {ANGLES: self.folder.angles()} if self.recipe.angles_every else {}

    def other_data(self) -> str:
        return (
            "the images or the classes of a split are not those it was trained on; give the same --data, or begin a "
            f"new run with --set start={self.folder.path}"
        )

    def cures(self) -> str:
        has_best = (self.folder.path / BEST).exists()
        begin = f", from the best weights so far with --set start={self.folder.path}" if has_best else ""
        return f"begin a new run{begin}: {self.USUAL_CURES}"


# ----------------------------------------------------------------------------------------------------------------------
# Semantic segmentation: a class for every pixel.


class Segmentation(Task[SegmentationRecipe]):
    kind = SEGMENTATION
    loop = Loop
    views = True
    sets = datasets
    answers = SegmentAnswers
    showing = SegmentShowing

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: SegmentationRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> Sets:
        sets = Sets.of(recipe, root)
        if first:
            sets.check()
        return sets

    def build(self, recipe: SegmentationRecipe, data: Sets) -> Segmenter:
        return build(recipe, len(data.train.classes))

    def batches(self, recipe: SegmentationRecipe, data: Sets, device: torch.device) -> Batches:
        return feed(recipe, device, data.train, self.info(recipe, data))

    def info(self, recipe: SegmentationRecipe, data: Sets) -> Info:
        asked = recipe.data
        extra = {"recipe": recipe.name, "data": asked.name, "data_options": asked.options, "val_split": asked.val_split}
        return Info(classes=data.train.classes, palette=data.train.palette, extra=extra)

    def about(self, recipe: SegmentationRecipe) -> dict[str, Any]:
        model = recipe.model
        # a head that is a whole system is its own context
        context = model.context if "context" in options_of(heads[model.name]) else model.name
        return {"model": model.name, "backbone": model.backbone, "context": context}

    def notes(self, recipe: SegmentationRecipe, net: Any) -> Iterable[str]:
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
        from hamburger.segmentation.data.checks import check

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
        protocol: EvaluationProtocol = SINGLE_SCALE,
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

    def graph(self, info: Info) -> ExportSpec:
        return SEGMENTATION_EXPORT
