"""What a task tells the shared engine: recipe, scores, data, network, prediction, pictures and export."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, check_count, check_flag, check_positive
from hamburger.registry import Registry
from hamburger.training.recipe import SupervisedTraining
from hamburger.training.scores import Score
from hamburger.training.trainer import Supervised

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


@dataclass(frozen=True)
class Kind:
    """- `task`: what a recipe.json, a weights file and a result say under "task"
    - `networks`: what is trained, as the title of a report says it
    - `recipe`, `named`, `check`: the class, the recipes of `ham list recipes`, and `check(recipe, processes=1)`
    - `scores`: the numbers that are shown; the first decides which weights are the best, the others may be None where
      a set does not tell
    - `pooled`: what the score is taken over, in words for the reader of a report
    - `each`: what the score of a single class, or `member`, is called, where there is one; `absent`: when one has none
    """

    task: str
    networks: str
    recipe: type[SupervisedTraining]
    named: Registry[Any]
    check: Callable[..., None]
    scores: tuple[Score, ...]
    pooled: str
    each: Score | None = None
    member: str = "class"
    absent: str = "the class is neither labelled nor predicted"

    @property
    def score(self) -> Score:
        return self.scores[0]

    def told(self, found: Mapping[str, Any]) -> list[tuple[Score, float]]:
        """The scores that a result has, with their values; those of a part of its images say of how many."""
        had = [score for score in self.scores if found.get(score.name) is not None]
        return [(score.told(found, self.member), found[score.name]) for score in had]


# ----------------------------------------------------------------------------------------------------------------------
# Class probabilities of whole images: averaged over scales, the mirrored image, and the places of a window.


SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # the paper's test scales


@dataclass(frozen=True)
class Protocol:
    """How an image is looked at. As a string it stands beside every score that was made so."""

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
        said = ["single scale" if self.scales == (1.0,) else f"scale {listed}" if single else f"scales {listed}"]
        if self.flip:
            said.append("flip")
        if self.window is not None:
            said.append(f"window {self.window}/{self.stride}")
        return ", ".join(said)


SINGLE = Protocol()


# ----------------------------------------------------------------------------------------------------------------------
# What a trained network makes of a person's photographs, in a form that one job can write down for every task.


@dataclass(frozen=True)
class Answer:
    """`row`: fields of summary.json.   `cells`: for the table on the terminal.   `files`: contents by their kind"""

    row: dict[str, Any]
    cells: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


class Answers(ABC):
    """`answers(path)`: one photograph, read and predicted; of `pairs` both paths.

    The constructor takes the network, what is known of it, the device, and by name those options of `ham predict` that
    mean something to the task. `files` gives each kind of file a path below the output folder, from the photograph's
    name; with `by_id` names are those of the files alone, which must then differ.
    """

    columns: ClassVar[tuple[str, ...]]  # of the table on the terminal
    pairs: ClassVar[bool] = False  # whether it looks at two photographs at once, LEFT RIGHT
    remedy: ClassVar[str] = "take another --device"  # where memory does not suffice
    files: Mapping[str, Callable[[str], Path]] = {}
    by_id = False

    def __init__(self, net: nn.Module, info: Info, device: torch.device) -> None:
        self.net, self.info, self.device = net.to(device).eval(), info, device

    @abstractmethod
    def __call__(self, *paths: Path) -> Answer:
        """An InputError where the file cannot be used."""

    def settings(self) -> dict[str, Any]:
        """What summary.json says of all photographs."""
        return {"classes": list(self.info.classes)}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        """What a person should know of the rows that were made."""
        return ()


# ----------------------------------------------------------------------------------------------------------------------
# Images of a split beside what networks make of them, as a report shows them for every task.


Colour = tuple[int, int, int]
Legend = Sequence[tuple[Colour, str]]


class Picture(NamedTuple):
    """`pixels`: 3 h w, uint8.   `drawn`: of colours that stand for something, not to be mixed when it shrinks"""

    pixels: Tensor
    words: str
    drawn: bool = False


class Showing(ABC):
    """Made of a split that `Task.split` opened. The same index and weights give the same pictures."""

    score: ClassVar[Score]  # of one image: by it images are found where one network is ahead of another
    each: ClassVar[int] = 2  # images under each heading
    images: ClassVar[str] = "whole image"  # how networks are shown them

    sample: Callable[[int], Any]  # one of the split, as it is there

    def __init__(self, split: Any) -> None:
        self.split = split
        self.sample = cache(lambda index: split[index])  # several networks look at each

    def __len__(self) -> int:
        return len(self.split)

    def name(self, index: int) -> str:
        """Of the image, for its caption."""
        return str(self.split.ids[index])

    @abstractmethod
    def image(self, index: int) -> Tensor:
        """3 h w, uint8"""

    def input(self, index: int, info: Info, device: torch.device) -> Tensor | None:
        """What the network takes, so that hams and spectra can be looked at; None where that is no one tensor."""
        return None

    @abstractmethod
    def answer(self, net: nn.Module, info: Info, device: torch.device, index: int) -> Any:
        """What the network makes of the image."""

    @abstractmethod
    def judge(self, index: int, answer: Any) -> float:
        """The `score` of an answer."""

    @abstractmethod
    def row(self, index: int, answers: Mapping[str, Any], note: str = "") -> list[Picture]:
        """The image with its truth, then the answers by the name of their network; `note` stands behind its name."""

    def legends(self, indices: Sequence[int]) -> list[Legend]:
        """What colours mean."""
        return []

    def context(self, net: nn.Module) -> str | None:
        """The dotted name of the context in the network, where there is one."""
        return None


# ----------------------------------------------------------------------------------------------------------------------
# How a network looks to other programs: images in, tensors out.


Outputs = tuple[Tensor, ...]


class Judged(NamedTuple):
    """Two outputs beside each other: the largest difference of their numbers, the largest number, and which answers are
    the same, a flag each."""

    difference: float
    largest: float
    same: Tensor


def by_number(same: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Outputs, Outputs], Judged]:
    """For networks with one output; `same` says which answers of two of them agree."""

    def judge(ours: Outputs, theirs: Outputs) -> Judged:
        [a], [b] = ours, theirs
        return Judged(float((a - b).abs().max()), float(a.abs().max()), same(a, b))

    return judge


def same_class(ours: Tensor, theirs: Tensor) -> Tensor:
    """Whether the largest logit is the same one.   b k *spatial, twice   ->   b *spatial"""
    return ours.argmax(1) == theirs.argmax(1)


judge_classes = by_number(same_class)


def itself(net: nn.Module) -> nn.Module:
    return net


def called(net: nn.Module, *images: Tensor) -> Any:
    return net(*images)


@dataclass(frozen=True)
class Graph:
    """- `size`: height and width of the images that a file is tried on where nobody asks for others
    - `inputs`, `outputs`: names; each input is b 3 h w, as `Info` has it normalised
    - `judge`: how far two outputs agree
    - `differ`, `alike`: the words for it: what has a difference, what is the same
    - `answer`: what there is one answer for, in the plural; `least`: the share of them that must be the same
    - `written`: the network in the form that is written
    - `asked`: the network's own answer to inputs as the file takes them, which the file must give
    - `free`: axes that may be any in a file, if the exporter can; `fixed`: why the others cannot
    """

    size: tuple[int, int] = (513, 513)
    inputs: tuple[str, ...] = ("image",)
    outputs: tuple[str, ...] = ("logits",)
    judge: Callable[[Outputs, Outputs], Judged] = judge_classes
    differ: str = "logits"
    alike: str = "labels agree"
    answer: str = "pixels"
    least: float = 0.999
    written: Callable[[nn.Module], nn.Module] = itself
    asked: Callable[..., Any] = called
    free: tuple[str, ...] = ("batch", "height", "width")
    fixed: str = ""


PIXELS = Graph()  # of a segmentation network


# ----------------------------------------------------------------------------------------------------------------------
# What a task says of itself, so that one road from data to metric serves all of them.
#
# `ham train`, `ham eval`, `ham predict`, `ham export`, `ham report`, `ham compare` and `ham ablate` know tasks by this
# description alone. To add one:
#
# 1. `recipes/`: a frozen dataclass that derives from `SupervisedTraining`, with a field `task: str = "<name>"`, recipes
#    that return it, a check; in `recipes/kinds.py` a `Kind`: these, and the scores with their units and which way is
#    better. From then on recipes are found, listed, checked, compared and ablated, and their scores shown.
# 2. Its own parts where they belong: data in `data/`, the network in `models/` (a class with a `config` that
#    `models.stored` writes), an `evaluate` that returns a frozen dataclass with the scores, `protocol` and `images`,
# and
#    a loop in `engine/<name>/` that derives from `Supervised` and has `losses` of its own. Evaluation gives the same
# bits
#    every time and adds its counts over all processes.
# 3. `use/<name>/`: an `Answers` for `ham predict`, a `Showing` for the pictures of `ham report`; both may come later.
# 4. `tasks/<name>.py`: a class that derives from `Task` and fills what stands below; one line in `tasks/__init__.py`.
# 5. Tests as in `tests/engine/test_class_training.py`: the folder, equal bits again and after an interruption, the
#    commands.
#
# `train` calls, in this order: `kind.check`, `open`, `build`, `loop` (which asks for `info` and `batches`), `notes`,
# then
# at every evaluation `evaluate` and `save`, at the end `about`. `ham eval` calls `load`, `set_meant`, `split`, `fits`,
# `evaluate`; `ham predict` builds `answers`, `ham export` asks for the `graph`, `ham report` opens a `split` and its
# `showing`.


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
