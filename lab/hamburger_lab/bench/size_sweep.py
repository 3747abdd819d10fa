"""Training steps of networks with each context at several image sizes: shared by `bench classes` and `bench detect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, UnknownNameError, check_count
from hamburger.insertion.dry_run import guess_layout
from hamburger.insertion.insert import describe_missing_module
from hamburger.insertion.inserted import CHILD_NAME, InsertedContext
from hamburger_lab.bench.network import NetworkRace, check_race_plan, training_flags


@dataclass(frozen=True)
class SizeSweepPlan:
    """`variants`: row name -> context options. `after`: the submodule that the context follows."""

    call: ClassVar[str]
    least: ClassVar[int]  # smallest image size in pixels

    variants: dict[str, dict[str, Any]]
    sizes: tuple[int, ...]
    backbone: str
    after: str
    batch: int
    device: str = "cpu"
    dtype: str = "float32"
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sizes:
            raise OptionError(f"{self.call}: give at least one size")
        for size in self.sizes:
            check_count(self.call, "size", size, least=self.least)
        check_race_plan(self.call, self)

    @property
    def stages(self) -> int:
        """Number of progress reports of `measure`."""
        return len(self.sizes) * (len(self.variants) + 1 + self.repeats)


@dataclass(frozen=True)
class SizeSweepRow:
    """One line of the result file: a whole training step at one size, and its peak memory."""

    context: str
    backend: str  # backend of our hams: the value of HAM_BACKEND
    backbone: str
    after: str
    size: int  # side of the image
    n: int | None  # positions of the context's input; None if it did not run, or ran on several sizes
    batch: int
    dtype: str
    tf32: str
    cudnn_benchmark: bool
    params: int
    train_ms: float | None
    train_ms_iqr: float | None
    images_per_s: float | None
    ratio: float | None  # median over rounds of this step's time divided by that of `ratio_to`
    ratio_to: str
    peak_mb: float | None
    context_mb: float | None  # peak memory minus that of `ratio_to`
    note: str
    repeats: int
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


class SizeSweepRace(NetworkRace):
    """Times training steps of the networks at one image size."""

    row: ClassVar[type[SizeSweepRow]] = SizeSweepRow

    def __init__(self, plan: SizeSweepPlan, size: int) -> None:
        super().__init__(plan)
        self.size = size
        self.positions: dict[str, int | None] = {}

    def count_positions(self, context: str, net: nn.Module, place: str) -> None:
        """Record the positions of the map that the submodule `place` returns, with or without a context."""
        modules = dict(net.named_modules())
        if not place or place not in modules:
            raise UnknownNameError(describe_missing_module(self.plan.call, place, [name for name in modules if name]))

        inserted = modules.get(f"{place}.{CHILD_NAME}")
        layouts = [inserted.adapter.layout] if isinstance(inserted, InsertedContext) else []

        def record_positions(module: nn.Module, args: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or output.dim() != 4:  # tokens, which may include class tokens
                return
            if not layouts:  # only once: the steps are timed
                layouts.append(guess_layout(net, module, output))
            n = (output.shape[2:] if layouts[0] == "channels" else output.shape[1:3]).numel()  # b c h w, or b h w c
            if self.positions.setdefault(context, n) != n:  # maps of several sizes
                self.positions[context] = None

        modules[place].register_forward_hook(record_positions)

    def row_fields(self, context: str, samples: dict[str, list[float]]) -> dict[str, Any]:
        first = next(iter(self.plan.variants))
        added = None
        if context in self.peaks and first in self.peaks:
            added = round(self.peaks[context] - self.peaks[first], 1)
        fields = {"after": self.plan.after, "size": self.size, "n": self.positions.get(context), "context_mb": added}
        return fields | super().row_fields(context, samples)


def measure(
    plan: SizeSweepPlan, race_type: type[SizeSweepRace], progress: Callable[[str], object], *, steady: bool = True
) -> Iterator[Any]:
    """Yield one row per size and context. Networks of one size take turns, as in `ham bench network`."""
    with training_flags(plan.device, steady=steady):
        for size in plan.sizes:
            race = race_type(plan, size)
            samples = race.measure(lambda what, size=size: progress(f"{size} px, {what}"))  # type: ignore[misc]
            for context in plan.variants:
                yield race.row(**race.row_fields(context, samples))
            del race
            if plan.device == "cuda":
                torch.cuda.empty_cache()
