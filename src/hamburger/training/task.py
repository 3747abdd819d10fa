"""What a task tells the shared engine: recipes, metrics, data, network, losses, prediction, images and export.

`ham train`, `ham eval`, `ham predict`, `ham export`, `ham report`, `ham compare` and `ham ablate` know a task only by
its `Task` object. CONTRIBUTING.md, "Add a task", has the steps for a new one.

`train` calls `check`, `open`, `check_data`, `build`, `info`, `batches`, `notes`; at every step `before_step`,
`loss_weights` and `losses`; at every evaluation `evaluate` and `save`; at the end `about` and `extra_results`.
`ham eval` calls `load`, `dataset_for`, `split`, `check_fits` and `evaluate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from hamburger.checkpoints.network import load_network
from hamburger.registry import Registry
from hamburger.training.datasets import Progress, check_classes, create_from_registry
from hamburger.training.recipe import SupervisedTraining
from hamburger.training.supervised import SINGLE_SCALE, EvaluationProtocol, Splits

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.training.run_folder import RunFolder
    from hamburger.training.trainer import Trainer
    from hamburger.training.visualizer import Visualizer

R = TypeVar("R", bound=SupervisedTraining)
NoteWriter = Callable[[str], object]


# -- metrics -----------------------------------------------------------------------------------------------------------


PERCENT = "%"


@dataclass(frozen=True)
class Metric:
    """`Metric("miou", "mIoU")` is a share between 0 and 1, shown in percent; `Metric("epe", "EPE", "px", higher=False)`
    is in pixels, and less of it is better. `count_field`: the field with the number of images that have this metric,
    where not all have it.
    """

    name: str  # of the field in result.json, metrics.jsonl and rows
    label: str
    unit: str = PERCENT
    higher: bool = True
    count_field: str | None = None

    def among_images(self, result: Mapping[str, Any], member: str) -> Metric:
        """This metric, labelled for one result: `EPE seen by both (2 of 4 pairs)` where only some images have it."""
        count, images = result.get(self.count_field or ""), result.get("images")
        if count is None or count == images:
            return self
        return replace(self, label=f"{self.label} ({count} of {images} {member}s)")

    def is_better(self, one: float, other: float) -> bool:
        return one > other if self.higher else one < other

    @property
    def scale(self) -> int:
        return 100 if self.unit == PERCENT else 1

    @property
    def heading(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def difference_unit(self) -> str:
        """What a difference is counted in."""
        return "points" if self.unit == PERCENT else self.unit or "more"

    def format(self, value: float, digits: int = 2) -> str:
        return f"{self.scale * value:.{digits}f}"

    def format_difference(self, value: float) -> str:
        return f"{self.scale * value:+.2f}"

    def describe(self, value: float) -> str:
        """`mIoU 71.20 %`, `EPE 1.25 px`."""
        return f"{self.label} {self.format(value)} {self.unit}".rstrip()


class Task(ABC, Generic[R]):
    """One task. Networks are plain modules and data are of any type here; only the task looks inside them."""

    name: ClassVar[str]  # the value of "task" in a recipe.json, a weights file and a result
    networks: ClassVar[str]  # what is trained, for the title of a report
    recipe: type[R]
    recipes: Registry[R]  # those of `ham list recipes`
    datasets: Registry[Any]  # by name; those whose constructor takes `root` are read from files
    predictor: type[Any] | None = None  # for `ham predict`: an inference.predict_files.FilePredictor
    visualizer: type[Visualizer] | None = None  # for the images of `ham report`
    splits: ClassVar[type[Splits[Any]]] = Splits  # both splits of a recipe's data
    # the first decides which weights are the best; the others may be None where a data set lacks what they need
    metrics: tuple[Metric, ...]
    pooled: ClassVar[str]  # what the first metric is computed over, in words for the reader of a report
    member_metric: ClassVar[Metric | None] = None  # the metric of a single class, or other `member`
    member: ClassVar[str] = "class"
    absent: ClassVar[str] = "the class is neither labelled nor predicted"  # when a member has no value
    single_class: ClassVar[bool] = False  # whether each pixel or image gets one class, so that a network can collapse
    fixed_batch_size: ClassVar[bool] = True  # whether the network always sees tensors of the same size in training
    test_time_augmentation: ClassVar[bool] = False  # whether `evaluate` takes other protocols than SINGLE_SCALE

    @property
    def metric(self) -> Metric:
        """The metric that decides which weights are the best."""
        return self.metrics[0]

    def present_metrics(self, result: Mapping[str, Any]) -> list[tuple[Metric, float]]:
        """The metrics that a result has, with their values; one of a part of the images says of how many."""
        present = [metric for metric in self.metrics if result.get(metric.name) is not None]
        return [(metric.among_images(result, self.member), result[metric.name]) for metric in present]

    @abstractmethod
    def check(self, recipe: R, *, processes: int = 1) -> None:
        """Raise OptionError on the first field of the recipe that cannot work with so many processes."""

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self,
        recipe: R,
        root: Path | None,
        *,
        check: bool,
        note: NoteWriter,
        progress: Progress = lambda done, total: None,
    ) -> Any:
        """The data: `train` and `val`, each with a length, and `digest()` of what decides which images a step sees.

        `check` calls `check_data`, in one process of a new run.
        """
        data = self.splits.create(self.datasets, recipe.data, root)
        if check:
            self.check_data(recipe, data, note, progress)
        return data

    def check_data(self, recipe: R, data: Any, note: NoteWriter, progress: Progress) -> None:
        """Read all of the data and raise a DataError that lists everything wrong; `note` what can be trained on.

        `progress` is called with the number of images read so far, and with that of all.
        """

    @abstractmethod
    def build(self, recipe: R, data: Any) -> nn.Module:
        """The network on the CPU with its initial weights; torch's generator has been seeded by the recipe."""

    @abstractmethod
    def batches(self, recipe: R, data: Any, device: torch.device) -> Any:
        """The training batches: `run(start, stop)` yields the micro-batches of each step; `waited` counts seconds.

        Batch t is a function of (seed, t), divided among the processes.
        """

    @abstractmethod
    def losses(self, model: nn.Module, micro_batch: Any, recipe: R) -> dict[str, Tensor]:
        """The terms of the loss of one micro-batch by name; their sum is the loss."""

    def loss_weights(self, net: Any, micro_batches: Sequence[Any]) -> Sequence[Mapping[str, Tensor]] | None:
        """For each micro-batch the weight of every term in the mean over the global batch; None: all weigh the same.

        Asked only where there are several micro-batches. Terms without a weight of their own take that of "".
        """
        return None

    def before_step(self, trainer: Trainer[R], step: int, micro_batches: Sequence[Any]) -> None:
        """Called before each step, to inspect weights and batch."""

    @abstractmethod
    def info(self, recipe: R, data: Any) -> Info:
        """The metadata of the weights file; `extra` has `data`, `data_options` and `val_split`, for `split`."""

    @abstractmethod
    def about(self, recipe: R) -> dict[str, Any]:
        """Fields of result.json on network and data, at least `context`: the name of the row in a comparison."""

    def extra_results(self, recipe: R, folder: RunFolder) -> dict[str, Any]:
        """Further fields of result.json."""
        return {}

    def notes(self, recipe: R, net: nn.Module) -> Iterable[str]:
        """Remarks to print when the training begins."""
        return ()

    def changed_data_advice(self, folder: Path) -> str:
        """What to do where a checkpoint was written with other data."""
        return "its images or classes are not those it was trained on; give the same --data, or begin a new run"

    def restart_advice(self, folder: Path) -> str:
        """How to begin again after the loss diverged."""
        return "begin a new run"

    # -- weights -------------------------------------------------------------------------------------------------

    def create(self, **config: Any) -> nn.Module:
        """The network with this `config`, the keywords that its weights file stores."""
        raise NotImplementedError

    def describe(self, net: Any, info: Info) -> Info:
        """`info` with what builds the network again: the name of the task and the keywords of `create`."""
        return replace(info, model={"task": self.name, **net.config})

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        """Write one .safetensors file from which `load` builds the network again.

        With `durable`, return only when the file is on the disk.
        """
        from hamburger.checkpoints.weights_file import write_weights

        write_weights(path, net, self.describe(net, info), durable=durable)

    def load(self, path: Path) -> tuple[Any, Info]:
        """The network on the CPU in evaluation mode, and its metadata."""
        return load_network("load", path, self.name, self.create)

    # -- evaluation ----------------------------------------------------------------------------------------------

    def dataset_for(self, name: str, root: Path | None) -> str:
        """The data set to use where the weights were trained on `name` and the user gave the folder `root`."""
        return name

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> Any:
        """The data to score weights on, with a length, `name` and `split`; `whole`: check all of it first."""
        data = create_from_registry(self.datasets, name, split, root, **options)
        if whole:
            self.check_split(data)
        return data

    def check_split(self, split: Any) -> Any:
        """Read all of a split and return what was found; raise a DataError that lists everything that is wrong."""

    def check_fits(self, call: str, info: Info, split: Any) -> None:
        """Raise where weights and data have different classes, as far as they have any."""
        if hasattr(split, "classes"):
            check_classes(call, info.classes, split)

    def list_outputs(self, net: nn.Module) -> Sequence[nn.Module]:
        """The parts of a network whose outputs must be finite for a score to mean something."""
        return (net,)

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
        protocol: EvaluationProtocol = SINGLE_SCALE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> Any:
        """A frozen dataclass with the values of the `metrics`, `protocol` in words and the number of `images`.

        The processes divide the work. `net` keeps its training mode. `progress` is called with (done, total) before
        each batch, and may stop the work by raising.
        """

    # -- use -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def export_spec(self, info: Info) -> Any:
        """The inputs and outputs of the network, for `ham export`: an inference.export.ExportSpec."""
