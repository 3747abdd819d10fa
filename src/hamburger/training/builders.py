"""What every task needs to set up a training: data checks, digests, the optimizer, Fabric."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import nn

from hamburger import distributed
from hamburger.errors import DataError, OptionError, ShapeError
from hamburger.layers.norm import convert_sync
from hamburger.training.optim import optimizer_of
from hamburger.training.recipe import AdamOptim, Optim, SupervisedTraining, Training

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class Split(Protocol):
    """What tells one split from another."""

    name: str
    split: str
    ids: Sequence[str]
    classes: tuple[str, ...]


S = TypeVar("S")
Found = TypeVar("Found")


def check_each(sets: Iterable[S], check: Callable[[S], Found]) -> list[Found]:
    """What the check finds in each of them; all that is wrong with all of them in one error."""
    sound: list[Found] = []
    found: list[DataError] = []
    for each in sets:
        try:
            sound.append(check(each))
        except DataError as wrong:
            found.append(wrong)
    if found:
        problems = [problem for wrong in found for problem in wrong.problems]
        raise DataError("\n".join(str(wrong) for wrong in found), problems)
    return sound


def check_alike(asked: Any, train: tuple[str, ...], val: tuple[str, ...]) -> None:
    """The classes of both splits of a recipe's data, whose numbers must mean the same."""
    if train != val:
        only = [name for name in (*train, *val) if name not in train or name not in val]
        what = f"{', '.join(only[:8])} in one of them only" if only else "in their order"
        raise DataError(
            f"{asked.name}: the classes of '{asked.train_split}' and '{asked.val_split}' differ, {what}; both must "
            "name the same ones in the same order"
        )


def digest_of(sets: Iterable[Split]) -> str:
    """Of what decides which images a step sees and what their labels mean."""
    said = [[each.name, each.split, each.classes, list(each.ids)] for each in sets]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


class Assembly(NamedTuple):
    """`net` is the network itself, `model` the same network as Fabric wraps it."""

    net: Any
    model: Any
    optimizer: torch.optim.Optimizer
    wrapped_optimizer: Any


def outfit(recipe: Training, optim: Optim | AdamOptim, fabric: Fabric, net: nn.Module) -> Assembly:
    """A network that has been built, with all that its training needs."""
    if recipe.sync_bn and distributed.world() > 1:
        convert_sync(net)
    if recipe.channels_last:
        net.to(memory_format=torch.channels_last)
    net.train()
    optimizer = optimizer_of(net, optim)
    compiled: Any = torch.compile(net) if recipe.compile else net
    model, wrapped = fabric.setup(compiled, optimizer)
    return Assembly(net, model, optimizer, wrapped)


def shared(recipe: SupervisedTraining, device: torch.device) -> dict[str, Any]:
    """What the batches of every task are told: how many, whose, by which seed, and where they go."""
    return {
        "batch": recipe.batch,
        "seed": recipe.seed,
        "device": device,
        "rank": distributed.rank(),
        "world": distributed.world(),
        "accumulate": recipe.accumulate,
        "workers": recipe.data.workers,
        "resident": recipe.data.resident,
    }


# ----------------------------------------------------------------------------------------------------------------------
# Scores of a network on a split, pooled over all of its pixels.


def check_classes(call: str, known: Sequence[str], dataset: Any) -> None:
    """Weights and data must speak of the same classes, in the same order."""
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
