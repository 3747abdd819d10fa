"""What every task uses to set up a training: data checks, digests, network and optimizer, batch options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from hamburger import distributed
from hamburger.errors import DataError, OptionError, ShapeError
from hamburger.training.recipe import AdamOptim, Optim, SupervisedTraining, Training

if TYPE_CHECKING:
    from hamburger.training.fabric import Fabric


# -- checks and digests of data ----------------------------------------------------------------------------------------


class Split(Protocol):
    """One split of a data set."""

    name: str
    split: str
    ids: Sequence[str]
    classes: tuple[str, ...]


S = TypeVar("S")
Checked = TypeVar("Checked")


def check_each(splits: Iterable[S], check: Callable[[S], Checked]) -> list[Checked]:
    """The results of `check` for each split; one DataError lists the problems of all of them."""
    results: list[Checked] = []
    errors: list[DataError] = []
    for split in splits:
        try:
            results.append(check(split))
        except DataError as error:
            errors.append(error)
    if errors:
        problems = [problem for error in errors for problem in error.problems]
        raise DataError("\n".join(str(error) for error in errors), problems)
    return results


def check_same_classes(data: Any, train: tuple[str, ...], val: tuple[str, ...]) -> None:
    """Raise where the splits of a recipe's `data` have different classes, or the same ones in another order."""
    if train != val:
        only = [name for name in (*train, *val) if name not in train or name not in val]
        what = f"{', '.join(only[:8])} in one of them only" if only else "in their order"
        raise DataError(
            f"{data.name}: the classes of '{data.train_split}' and '{data.val_split}' differ, {what}; both must "
            "name the same ones in the same order"
        )


def check_classes(call: str, known: Sequence[str], dataset: Any) -> None:
    """Raise where weights and data set have different classes, or the same ones in another order."""
    if len(known) != len(dataset.classes):
        raise ShapeError(
            f"{call}: the weights know {len(known)} classes, the data set '{dataset.name}' has "
            f"{len(dataset.classes)}; give the data set and options that the weights were trained with"
        )
    for i, (ours, theirs) in enumerate(zip(known, dataset.classes, strict=True)):
        if ours != theirs:
            raise OptionError(
                f"{call}: class {i} is '{ours}' to the weights and '{theirs}' in the data set '{dataset.name}'; "
                f"name and order the classes as the weights were trained with: {', '.join(known)}"
            )


def digest_splits(splits: Iterable[Split]) -> str:
    """A digest of what decides which images a step sees and what their labels mean."""
    content = [[split.name, split.split, split.classes, list(split.ids)] for split in splits]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


# -- network, optimizer, batches ---------------------------------------------------------------------------------------


class TrainingSetup(NamedTuple):
    """`net` is the network itself, `model` the same network wrapped by Fabric."""

    net: Any
    model: Any
    optimizer: torch.optim.Optimizer
    wrapped_optimizer: Any


def set_up_training(recipe: Training, optim: Optim | AdamOptim, fabric: Fabric, net: nn.Module) -> TrainingSetup:
    """A built network with its optimizer, both wrapped by Fabric and on its device."""
    from hamburger.layers.norm import convert_sync
    from hamburger.training.optim import optimizer_of

    if recipe.sync_bn and distributed.world_size() > 1:
        convert_sync(net)
    if recipe.channels_last:
        net.to(memory_format=torch.channels_last)
    net.train()
    optimizer = optimizer_of(net, optim)
    compiled: Any = torch.compile(net) if recipe.compile else net
    model, wrapped = fabric.setup(compiled, optimizer)
    return TrainingSetup(net, model, optimizer, wrapped)


def batch_options(recipe: SupervisedTraining, device: torch.device) -> dict[str, Any]:
    """The options that the batches of every task take: sizes, seed, device, and this process's rank."""
    return {
        "batch": recipe.batch,
        "seed": recipe.seed,
        "device": device,
        "rank": distributed.rank(),
        "world": distributed.world_size(),
        "accumulate": recipe.accumulate,
        "workers": recipe.data.workers,
        "resident": recipe.data.resident,
    }


def to_layout(images: Tensor, recipe: Training) -> Tensor:
    """The images in the memory layout of the recipe's network."""
    return images.contiguous(memory_format=torch.channels_last) if recipe.channels_last else images
