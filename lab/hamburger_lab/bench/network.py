"""`ham bench network`: time a training step of a whole segmentation network with each context."""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hamburger.environment import describe_environment
from hamburger.errors import OptionError, check_choice, check_count, check_seed
from hamburger.tensors import list_tensors
from hamburger_lab.bench import common, footprint
from hamburger_lab.bench.timing import Timing, time_call

DTYPES = ("float32", "bfloat16")
WARMUP = 3  # steps of each network before anything is measured: library handles, workspaces, algorithm choice
FIGURES = ("train_ms", "train_ms_iqr", "images_per_s", "ratio", "peak_mb")


@dataclass(frozen=True)
class NetworkPlan:
    """`variants`: row name -> options of `create_model`."""

    variants: dict[str, dict[str, Any]]
    backbone: str = "resnet50"
    output_stride: int = 16
    num_classes: int = 21
    crop: int = 513
    batch: int = 16
    device: str = "cpu"
    dtype: str = "float32"
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for option in ("num_classes", "crop"):
            check_count("bench network", option, getattr(self, option), least=1)
        check_race_plan("bench network", self)

    @property
    def stages(self) -> int:
        """Number of progress reports of `measure`: one per network, then one per round, the first of them untimed."""
        return len(self.variants) + 1 + self.repeats


class RacePlan(Protocol):
    """The fields of a plan that a race reads."""

    @property
    def variants(self) -> dict[str, dict[str, Any]]: ...
    @property
    def batch(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def repeats(self) -> int: ...
    @property
    def seed(self) -> int: ...


def check_race_plan(call: str, plan: RacePlan) -> None:
    if not plan.variants:
        raise OptionError(f"{call}: give at least one context")
    check_count(call, "batch", plan.batch, least=1)
    check_count(call, "repeats", plan.repeats, least=1)
    check_seed(call, plan.seed)
    check_choice(call, "device", plan.device, ("cpu", "cuda"))
    check_choice(call, "dtype", plan.dtype, DTYPES)
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"{call}: no CUDA device found; use --device cpu")


def random_batch(plan: RacePlan, side: int, classes: int, labels: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return images (b, 3, side, side), channels last, and class labels of shape `labels`."""
    generator = torch.Generator(plan.device).manual_seed(plan.seed)
    images = torch.randn((plan.batch, 3, side, side), generator=generator, device=plan.device)
    drawn = torch.randint(classes, labels, generator=generator, device=plan.device)
    return images.contiguous(memory_format=torch.channels_last), drawn


@dataclass(frozen=True)
class NetworkRow:
    """One line of the result file: median of a whole training step (forward, backward, SGD), and its peak memory."""

    context: str
    backend: str  # backend of our hams: the value of HAM_BACKEND
    backbone: str
    output_stride: int
    crop: int
    batch: int
    dtype: str
    tf32: str  # which float32 operations run in TF32
    cudnn_benchmark: bool
    params: int
    train_ms: float | None
    train_ms_iqr: float | None
    images_per_s: float | None
    ratio: float | None  # median over rounds of this step's time divided by that of `ratio_to`
    ratio_to: str
    peak_mb: float | None
    note: str
    repeats: int
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


@contextlib.contextmanager
def training_flags(device: str, *, steady: bool = True) -> Iterator[None]:
    """Set the cuDNN flags of `ham train` and restore them afterwards; TF32 flags are not changed."""
    before = torch.backends.cudnn.benchmark
    if device == "cuda":
        torch.backends.cudnn.benchmark = steady
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def describe_tf32(device: str) -> str:
    flags = {"products": torch.backends.cuda.matmul.allow_tf32, "convolutions": torch.backends.cudnn.allow_tf32}
    return " and ".join(name for name, allowed in flags.items() if allowed and device == "cuda") or "off"


class TrainingStep:
    """Forward, backward and SGD step on fixed images, under autocast and by default channels last, as in training."""

    def __init__(self, plan: RacePlan, net: nn.Module, images: Any, labels: Any, *, channels_last: bool = True) -> None:
        self.images, self.labels = images, labels
        layout = torch.channels_last if channels_last else torch.preserve_format
        self.net = net.train().to(plan.device, memory_format=layout)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        enabled = plan.dtype == "bfloat16"
        self.autocast: Callable[[], contextlib.AbstractContextManager[object]] = lambda: torch.autocast(
            plan.device, torch.bfloat16, enabled=enabled
        )

    def __call__(self) -> Tensor:
        with self.autocast():
            terms = self.net(self.images, self.labels)
        loss: Tensor = torch.stack(list(terms.values())).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # at the end, so that networks that wait hold no gradients
        return loss.detach()

    def resident(self) -> list[Tensor]:
        momenta = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        return [*self.net.parameters(), *self.net.buffers(), *list_tensors((self.images, self.labels)), *momenta]


def measure(plan: NetworkPlan, progress: Callable[[str], object] = lambda _: None) -> list[NetworkRow]:
    """Return one row per context.

    All networks stay on the device, and every round runs one step of each, in shuffled order: other load and clock
    changes then affect all of them. Peak memory is measured before that, one network at a time.
    """
    with training_flags(plan.device):
        race = SegmentationRace(plan)
        return race.rows(race.measure(progress))


class NetworkRace(ABC):
    """Times training steps of several networks in turn; a subclass builds the networks and the rows."""

    def __init__(self, plan: RacePlan) -> None:
        self.plan: Any = plan
        self.steps: dict[str, TrainingStep] = {}
        self.params: dict[str, int] = {}
        self.peaks: dict[str, float] = {}
        self.notes: dict[str, str] = {}

    @abstractmethod
    def create(self, context: str) -> nn.Module:
        """Return the network of that row."""

    @abstractmethod
    def step(self, net: nn.Module) -> TrainingStep:
        """Return the training step to time."""

    def measure(self, progress: Callable[[str], object]) -> dict[str, list[float]]:
        """Return context -> milliseconds of every timed round, for the networks that ran."""
        for context in self.plan.variants:
            progress(context)
            self.add(context)
        return self.run(progress)

    def add(self, context: str) -> None:
        """Build a network, warm it up, check its loss and measure its peak memory."""
        plan = self.plan
        torch.manual_seed(plan.seed)
        net = self.create(context)
        self.params[context] = sum(p.numel() for p in net.parameters())
        try:
            step = self.step(net)
            for _ in range(WARMUP):
                loss = step()
            if not torch.isfinite(loss):
                self.notes[context] = f"refused: the loss is {loss.item()}"
                return
            self.peaks[context] = footprint.peak_mib(step, step.resident(), plan.device)
            self.steps[context] = step
        except torch.OutOfMemoryError:
            self.drop(context)

    def drop(self, context: str) -> None:
        """Remove a network that ran out of memory."""
        others = len(self.steps.keys() - {context})
        self.notes[context] = "out of memory" + (f" next to {others} other networks; try it alone" if others else "")
        self.steps.pop(context, None)
        torch.cuda.empty_cache()

    def run(self, progress: Callable[[str], object]) -> dict[str, list[float]]:
        """Return context -> milliseconds of every round but the first, in which the allocator warms up."""
        shuffle = random.Random(self.plan.seed).shuffle
        samples: dict[str, list[float]] = {context: [] for context in self.steps}
        gc.disable()  # garbage collection must not fall into a timed step
        try:
            for turn in range(1 + self.plan.repeats):
                progress(f"round {turn} of {self.plan.repeats}")
                gc.collect()
                order = list(self.steps)
                shuffle(order)
                for context in order:
                    try:
                        elapsed = time_call(self.steps[context], (), self.plan.device)
                    except torch.OutOfMemoryError:
                        self.drop(context)
                        continue
                    if turn:
                        samples[context].append(elapsed)
        finally:
            gc.enable()
        return {context: samples[context] for context in self.steps}

    def row_fields(self, context: str, samples: dict[str, list[float]]) -> dict[str, Any]:
        """Return the fields of a row that all races share."""
        plan, first = self.plan, next(iter(self.plan.variants))
        figures: dict[str, float | None] = dict.fromkeys(FIGURES)
        if context in self.peaks:
            figures["peak_mb"] = round(self.peaks[context], 1)
        if context in samples:
            timing = Timing.of(samples[context])
            figures["train_ms"] = round(timing.ms, 3)
            figures["train_ms_iqr"] = None if timing.ms_iqr is None else round(timing.ms_iqr, 3)
            figures["images_per_s"] = round(plan.batch / timing.ms * 1e3, 1)
            if first in samples:
                pairs = zip(samples[context], samples[first], strict=True)
                figures["ratio"] = round(statistics.median(a / b for a, b in pairs), 4)
        return {
            "context": context,
            "backend": common.requested_backend(),
            "backbone": plan.backbone,
            "batch": plan.batch,
            "dtype": plan.dtype,
            "tf32": describe_tf32(plan.device),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "params": self.params[context],
            **figures,
            "ratio_to": first,
            "note": self.notes.get(context, ""),
            "repeats": plan.repeats,
            "seed": plan.seed,
            **describe_environment(plan.device),
        }


class SegmentationRace(NetworkRace):
    """Times segmentation networks."""

    def __init__(self, plan: NetworkPlan) -> None:
        super().__init__(plan)
        size = (plan.batch, plan.crop, plan.crop)
        self.images, self.labels = random_batch(plan, plan.crop, plan.num_classes, size)

    def create(self, context: str) -> nn.Module:
        from hamburger.segmentation.model import create_model

        plan = self.plan
        return create_model(
            "hamnet",
            backbone=plan.backbone,
            output_stride=plan.output_stride,
            num_classes=plan.num_classes,
            **plan.variants[context],
        )

    def step(self, net: nn.Module) -> TrainingStep:
        return TrainingStep(self.plan, net, self.images, self.labels)

    def rows(self, samples: dict[str, list[float]]) -> list[NetworkRow]:
        fields = {"output_stride": self.plan.output_stride, "crop": self.plan.crop}
        return [NetworkRow(**fields, **self.row_fields(context, samples)) for context in self.plan.variants]
