"""From a recipe to the things that train: data, network, optimiser."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import nn

from hamburger import distributed
from hamburger.data import create_dataset
from hamburger.data.base import SegmentationSet
from hamburger.engine.folder import BEST
from hamburger.engine.optim import optimizer_of
from hamburger.errors import CheckpointError, DataError
from hamburger.layers.norm import convert_sync, set_bn_momentum
from hamburger.models.segmenter import Segmenter
from hamburger.recipes.base import AdamOptim, Optim, Recipe, SupervisedTraining, Training

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from hamburger.data.batches import Batches
    from hamburger.models.info import Info


class Sets(NamedTuple):
    train: SegmentationSet
    val: SegmentationSet

    @classmethod
    def of(cls, recipe: Recipe, root: Path | None) -> Sets:
        splits = (recipe.data.train_split, recipe.data.val_split)
        return cls(*(create_dataset(recipe.data.name, split, root=root, **recipe.data.options) for split in splits))

    def check(self) -> None:
        from hamburger.data.checks import check

        check_each(self, check)

    def digest(self) -> str:
        return digest_of(self)


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


def build(recipe: Recipe, k: int) -> Segmenter:
    """The network on the CPU, with the weights that it begins from."""
    from hamburger.models.create import create_model

    net = create_model(**asdict(recipe.model), num_classes=k)
    set_bn_momentum(net, recipe.bn_momentum)
    if recipe.start is not None:
        _copy_weights(Path(recipe.start), net)
    return net


def _copy_weights(start: Path, net: Segmenter) -> None:
    from hamburger.models.weights import load_weights

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


def feed(recipe: Recipe, device: torch.device, dataset: SegmentationSet, info: Info) -> Batches:
    from hamburger.data.batches import Batches

    return Batches(
        dataset,
        crop=recipe.data.crop,
        scales=recipe.data.scales,
        flip=recipe.data.flip,
        mean=info.mean,
        std=info.std,
        **shared(recipe, device),
    )


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
