"""What the supervised tasks share: the two splits, weights files, evaluation and confusion matrices."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from hamburger import distributed
from hamburger.errors import (
    InputError,
    NotFiniteError,
    OptionError,
    ShapeError,
    check_count,
    check_flag,
    check_positive,
)
from hamburger.registry import Registry
from hamburger.tensors import list_tensors
from hamburger.training.datasets import IGNORE, create_from_registry
from hamburger.training.loader import prefetch
from hamburger.training.recipe import SupervisedTraining

SplitSet = TypeVar("SplitSet")


# -- data --------------------------------------------------------------------------------------------------------------


class Splits(NamedTuple, Generic[SplitSet]):
    """The training and the validation split of a recipe."""

    train: SplitSet
    val: SplitSet

    @classmethod
    def create(cls, known: Registry[SplitSet], data: Any, root: Path | None, **options: Any) -> Self:
        """Open both splits of a recipe's `data`, one of the `known` sets."""
        options = {**data.options, **options}
        names = data.train_split, data.val_split
        return cls(*(create_from_registry(known, data.name, split, root, **options) for split in names))

    def digest(self) -> str:
        """Return a digest of what decides which images a step sees and what their labels mean."""
        splits: tuple[Any, ...] = self
        content = [
            [split.name, split.split, *([split.classes] if hasattr(split, "classes") else []), list(split.ids)]
            for split in splits
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def describe_data(recipe: SupervisedTraining) -> dict[str, Any]:
    """Return the entries of `Info.extra` from which a task opens the validation split of the weights again."""
    data = recipe.data
    return {"recipe": recipe.name, "data": data.name, "data_options": data.options, "val_split": data.val_split}


# -- evaluation --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationProtocol:
    """Class probabilities are averaged over `scales`, the mirrored image (`flip`) and the positions of a `window`.

    `str(protocol)` is reported with every score.
    """

    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    window: int | None = None  # side of a square; neighbours overlap by a third

    def __post_init__(self) -> None:
        if not self.scales:
            raise OptionError("evaluation: scales is empty; give at least one, such as 1.0")
        for scale in self.scales:
            check_positive("evaluation", "a scale", scale, most=8)
        check_flag("evaluation", "flip", self.flip)
        if self.window is not None:
            check_count("evaluation", "window", self.window, least=16)

    @property
    def stride(self) -> int | None:
        return None if self.window is None else -(-2 * self.window // 3)

    def __str__(self) -> str:
        single = len(self.scales) == 1
        listed = ",".join(f"{scale:g}" for scale in self.scales)
        parts = ["single scale" if self.scales == (1.0,) else f"scale {listed}" if single else f"scales {listed}"]
        if self.flip:
            parts.append("flip")
        if self.window is not None:
            parts.append(f"window {self.window}/{self.stride}")
        return ", ".join(parts)


SINGLE_SCALE = EvaluationProtocol()


@contextmanager
def evaluation_mode(net: nn.Module, *, fixed_size: bool = True) -> Iterator[None]:
    """Put the network into evaluation mode without gradients; restore its training mode afterwards.

    Without `fixed_size`, cuDNN does not autotune: that pays off only if image sizes repeat. This is not inference mode,
    since modules may cache tensors here and use them in training later.
    """
    training, benchmark = net.training, torch.backends.cudnn.benchmark
    net.eval()
    torch.backends.cudnn.benchmark = benchmark and fixed_size
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        net.train(training)


def check_prediction(what: str, values: Tensor) -> Tensor:
    """Return what the network predicts for an image; raise NotFiniteError where it is NaN or infinite."""
    if not values.isfinite().all():
        broken = int((~values.isfinite()).sum())
        raise NotFiniteError(
            f"predict: {broken} of {values.numel()} {what} are NaN or infinite; the weights are unusable for this image"
        )
    return values


@contextmanager
def check_outputs(what: str, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside the block, `check_prediction` is called on everything that the modules return."""

    def check(module: nn.Module, args: Any, output: Any) -> None:
        for values in list_tensors(output):
            check_prediction(what, values)

    handles = [module.register_forward_hook(check) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def read_share(dataset: Any, workers: int, progress: Callable[[int, int], Any]) -> Generator[tuple[int, Any]]:
    """Yield (index, sample) of this process's share of a data set, read ahead by `workers` threads.

    `progress(done, total)` is called before each sample and at the end.
    """
    rank_indices = range(distributed.rank(), len(dataset), distributed.world_size())
    with closing(prefetch(dataset.__getitem__, rank_indices, workers=workers, depth=2 * max(1, workers))) as samples:
        for done, (index, sample) in enumerate(zip(rank_indices, samples, strict=True)):
            progress(done, len(rank_indices))
            yield index, sample
    progress(len(rank_indices), len(rank_indices))


def scores_by_class(classes: Sequence[str], values: Tensor) -> dict[str, float | None]:
    """Return the score of each class by name; None instead of NaN, which marks a class without a score."""
    return {name: None if math.isnan(v) else v for name, v in zip(classes, values.tolist(), strict=True)}


# -- confusion matrices ------------------------------------------------------------------------------------------------


def confusion(prediction: Tensor, label: Tensor, k: int) -> Tensor:
    """Pixels by (label, prediction); what is labelled 255 does not count.   ... , ... ->   k k, int64

    `prediction` is 0 ... k - 1 everywhere, `label` is 0 ... k - 1 or 255.
    """
    if prediction.shape != label.shape:
        raise ShapeError(
            f"confusion: prediction {tuple(prediction.shape)} and label {tuple(label.shape)} must have one shape"
        )
    valid = label != IGNORE
    index = label[valid].long() * k + prediction[valid].long()
    counts = torch.bincount(index, minlength=k * k)
    if counts.numel() > k * k:  # free of charge: bincount has looked at the largest anyway
        raise InputError(
            f"confusion: label {(counts.numel() - 1) // k} is outside the {k} classes; labels are 0 to {k - 1}, "
            f"and {IGNORE} where unlabelled"
        )
    return counts.view(k, k)


class Confusion:
    """The sum of `confusion` over many images; whole numbers, so that order and grouping change nothing."""

    def __init__(self, k: int) -> None:
        check_count("Confusion", "k", k, least=1)
        self.k = k
        self.matrix = torch.zeros(k, k, dtype=torch.int64)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        self.matrix += confusion(prediction, label, self.k).cpu()

    def gather(self, device: torch.device) -> None:
        """Add up what all processes have counted; `device` is where they meet."""
        self.matrix = distributed.sum_over_ranks(self.matrix.to(device)).cpu()


def iou(matrix: Tensor) -> Tensor:
    """Intersection over union of each class, NaN for one that is neither labelled nor predicted.   k k   ->   k"""
    hit = matrix.diagonal().double()
    union = (matrix.sum(0) + matrix.sum(1)).double() - hit
    return hit / union


def miou(matrix: Tensor) -> float:
    """Mean over the classes that are labelled or predicted somewhere; NaN where nothing is labelled."""
    return float(iou(matrix).nanmean())


def accuracy(matrix: Tensor) -> float:
    """Share of the labelled samples (pixels, images) that are right."""
    return float(matrix.diagonal().sum().double() / matrix.sum().double())
