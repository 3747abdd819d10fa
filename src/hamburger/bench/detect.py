"""`ham bench detect`: a training step of Mask R-CNN with each context, at several sizes of the image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.bench.network import DTYPES, Contest, TrainingStep, flags_of_training
from hamburger.errors import OptionError, check_choice, check_count, check_seed


@dataclass(frozen=True)
class Plan:
    """`variants`: context options of `create_detector` by the name of the row.   `options`: its other ones"""

    variants: dict[str, dict[str, Any]]
    sizes: tuple[int, ...] = (256, 512, 768, 1024)
    backbone: str = "resnet50"
    after: str = "p3"
    batch: int = 4
    device: str = "cpu"
    dtype: str = "float32"
    repeats: int = 20
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.variants or not self.sizes:
            raise OptionError("bench detect: give at least one context and one size")
        for size in self.sizes:
            check_count("bench detect", "size", size, least=64)
        for option in ("batch", "repeats"):
            check_count("bench detect", option, getattr(self, option), least=1)
        check_seed("bench detect", self.seed)
        check_choice("bench detect", "device", self.device, ("cpu", "cuda"))
        check_choice("bench detect", "dtype", self.dtype, DTYPES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise OptionError("bench detect: there is no CUDA device here; take --device cpu")

    @property
    def stages(self) -> int:
        """How often `measure` reports."""
        return len(self.sizes) * (len(self.variants) + 1 + self.repeats)


@dataclass(frozen=True)
class Row:
    """One line of the result file: a whole training step at one size, and its peak memory."""

    context: str
    backend: str  # of our hams: what HAM_BACKEND said
    backbone: str
    after: str
    size: int  # side of the image
    n: int | None  # positions that the context sees; None where it did not come so far
    batch: int
    dtype: str
    tf32: str
    cudnn_benchmark: bool
    params: int
    train_ms: float | None
    train_ms_iqr: float | None
    images_per_s: float | None
    ratio: float | None  # median over the rounds of this step's time over that of `ratio_to` in the same round
    ratio_to: str
    peak_mb: float | None
    context_mb: float | None  # by how much the peak lies above that of `ratio_to`
    note: str
    repeats: int
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


def measure(plan: Plan, progress: Callable[[str], object] = lambda _: None) -> Iterator[Row]:
    """A row per size and context, size after size; of one, all networks take turns as in `ham bench network`."""
    with flags_of_training(plan.device, steady=False):
        for size in plan.sizes:
            detectors = Detectors(plan, size)
            samples = detectors.measured(lambda what, size=size: progress(f"{size} px, {what}"))  # type: ignore[misc]
            yield from detectors.rows(samples)
            del detectors
            if plan.device == "cuda":
                torch.cuda.empty_cache()


class Detectors(Contest):
    """On generated scenes of one size."""

    def __init__(self, plan: Plan, size: int) -> None:
        from hamburger.data.detection.batches import SceneBatches
        from hamburger.data.detection.shapes import Shapes

        super().__init__(plan)
        self.size = size
        scenes = Shapes("train", size=size, length=plan.batch, seed=plan.seed)
        [self.batch] = SceneBatches(scenes, batch=plan.batch, crop=size, device=plan.device, resident="no").at(0)
        self.classes = len(scenes.classes)
        self.positions: dict[str, int] = {}

    def create(self, context: str) -> nn.Module:
        from hamburger.models.detector import create_detector, places

        plan = self.plan
        net = create_detector(
            plan.backbone,
            num_classes=self.classes,
            after=plan.after,
            size=self.size,
            max_size=self.size,
            **plan.variants[context],
            **plan.options,
        )

        def see(module: nn.Module, args: Any, output: Tensor) -> None:
            self.positions[context] = output.shape[-2:].numel()

        net.net.get_submodule(places(plan.after)[0]).register_forward_hook(see)
        return net

    def step(self, net: nn.Module) -> TrainingStep:
        return TrainingStep(self.plan, net, self.batch.images, self.batch.targets, channels_last=False)

    def rows(self, samples: dict[str, list[float]]) -> list[Row]:
        first = next(iter(self.plan.variants))
        rows = []
        for context in self.plan.variants:
            more = None
            if context in self.peaks and first in self.peaks:
                more = round(self.peaks[context] - self.peaks[first], 1)
            own = {"after": self.plan.after, "size": self.size, "n": self.positions.get(context), "context_mb": more}
            rows.append(Row(**own, **self.about(context, samples)))
        return rows
