"""What a task says of itself, so that one road from data to metric serves all of them.

`ham train`, `ham eval`, `ham predict`, `ham export`, `ham report`, `ham compare` and `ham ablate` know tasks by this
description alone. To add one:

1. `recipes/`: a frozen dataclass that derives from `SupervisedTraining`, with a field `task: str = "<name>"`, recipes
   that return it, a check; in `recipes/kinds.py` a `Kind`: these, and the scores with their units and which way is
   better. From then on recipes are found, listed, checked, compared and ablated, and their scores shown.
2. Its own parts where they belong: data in `data/`, the network in `models/` (a class with a `config` that
   `models.stored` writes), an `evaluate` that returns a frozen dataclass with the scores, `protocol` and `images`, and
   a loop in `engine/<name>/` that derives from `Supervised` and has `losses` of its own. Evaluation gives the same bits
   every time and adds its counts over all processes.
3. `use/<name>/`: an `Answers` for `ham predict`, a `Showing` for the pictures of `ham report`; both may come later.
4. `tasks/<name>.py`: a class that derives from `Task` and fills what stands below; one line in `tasks/__init__.py`.
5. Tests as in `tests/engine/test_class_training.py`: the folder, equal bits again and after an interruption, the
   commands.

`train` calls, in this order: `kind.check`, `open`, `build`, `loop` (which asks for `info` and `batches`), `notes`, then
at every evaluation `evaluate` and `save`, at the end `about`. `ham eval` calls `load`, `set_meant`, `split`, `fits`,
`evaluate`; `ham predict` builds `answers`, `ham export` asks for the `graph`, `ham report` opens a `split` and its
`showing`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import nn

from hamburger.engine.answers import Answers
from hamburger.engine.graph import Graph
from hamburger.engine.probabilities import SINGLE, Protocol
from hamburger.engine.showing import Showing
from hamburger.engine.supervised import Supervised
from hamburger.errors import OptionError
from hamburger.recipes.base import SupervisedTraining
from hamburger.recipes.kinds import Kind
from hamburger.registry import Registry

if TYPE_CHECKING:
    from hamburger.models.info import Info

R = TypeVar("R", bound=SupervisedTraining)


class Task(ABC, Generic[R]):
    """Networks are plain modules here, data whatever the task opens; only the task looks inside them."""

    kind: ClassVar[Kind]
    loop: ClassVar[type[Supervised[Any]]]
    steady: ClassVar[bool] = True  # whether every batch of a training has the same size
    views: ClassVar[bool] = False  # whether an image can be looked at in other scales, mirrored and through a window
    sets: ClassVar[Registry[Any]]  # data sets by name; those whose constructor takes `root` lie in files
    answers: ClassVar[Callable[..., Answers] | None] = None  # a class, for `ham predict`
    showing: ClassVar[type[Showing] | None] = None  # for the pictures of `ham report`

    # -- training ------------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, recipe: R, root: Path | None, *, first: bool, note: Callable[[str], object]) -> Any:
        """The data: `train` and `val`, each with a length, and `digest()` of what decides which images a step sees.

        The `first` process alone reads all of it and raises a DataError that lists everything which is wrong.
        """

    @abstractmethod
    def build(self, recipe: R, data: Any) -> nn.Module:
        """The network on the CPU with the weights that it begins from; torch's generator has the recipe's seed."""

    @abstractmethod
    def batches(self, recipe: R, data: Any, device: torch.device) -> Any:
        """What feeds the loop: `run(start, stop)`, pairs of a step and the parts of its batch, and `waited` seconds.

        Batch t is a function of (seed, t), shared among the processes.
        """

    @abstractmethod
    def info(self, recipe: R, data: Any) -> Info:
        """What the weights file says of the data; `extra` with `data`, `data_options` and `val_split` for `split`."""

    @abstractmethod
    def about(self, recipe: R) -> dict[str, Any]:
        """What result.json says of network and data, with `context` at least: the name of the row in a comparison."""

    def notes(self, recipe: R, net: nn.Module) -> Iterable[str]:
        """What a person should know as the training begins."""
        return ()

    # -- weights -------------------------------------------------------------------------------------------------

    @abstractmethod
    def save(self, path: Path, net: nn.Module, info: Info, *, durable: bool = True) -> None:
        """One .safetensors file from which `load` builds the network again; its `model` says the task.

        Without `durable` the disk is not waited for.
        """

    @abstractmethod
    def load(self, path: Path) -> tuple[nn.Module, Info]:
        """On the CPU and in evaluation mode."""

    # -- scores --------------------------------------------------------------------------------------------------

    def set_meant(self, name: str, root: Path | None) -> str:
        """The set that a person means who gives this folder to weights of that set."""
        return name

    @abstractmethod
    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> Any:
        """The data that weights are scored on: with a length, `name` and `split`. `whole`: all of it is checked."""

    def fits(self, call: str, info: Info, split: Any) -> None:
        """Raise where weights and data do not speak of the same classes, as far as they have any."""
        classes = getattr(split, "classes", info.classes)
        if tuple(classes) != info.classes:
            raise OptionError(
                f"{call}: the weights know the classes {', '.join(info.classes)}, and '{split.name}' has "
                f"{', '.join(classes)}; give the data that they were trained with"
            )

    @abstractmethod
    def evaluate(
        self,
        net: nn.Module,
        split: Any,
        info: Info,
        *,
        device: torch.device,
        batch: int = 128,
        workers: int = 4,
        channels_last: bool = False,
        protocol: Protocol = SINGLE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> Any:
        """A frozen dataclass with the scores of `kind`, `protocol` in words and the number of `images`.

        Shared among the processes. `net` is left in the mode it came in. `progress` hears (done, total) before each
        batch, and may stop the work by raising. `protocol` is SINGLE where `views` is False.
        """

    def evaluate_ways(
        self, net: nn.Module, split: Any, info: Info, ways: Sequence[Callable[[], object]], **options: Any
    ) -> list[Any]:
        """The scores of as many evaluations, each after a call that changes how the hams of `net` solve.

        A task whose networks do most of their work before the hams does that part once.
        """
        found = []
        for way in ways:
            way()
            found.append(self.evaluate(net, split, info, **options))
        return found

    # -- use -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def graph(self, info: Info) -> Graph:
        """How the network looks to other programs, for `ham export`."""
