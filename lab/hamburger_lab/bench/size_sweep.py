"""Training steps of networks with each context, size after size of the image: what such races have in common."""

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
    """`variants`: context options of the network by the name of the row.   `after`: where the context is inserted"""

    call: ClassVar[str]
    least: ClassVar[int]  # pixels

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
        """How often `measure` reports."""
        return len(self.sizes) * (len(self.variants) + 1 + self.repeats)


@dataclass(frozen=True)
class SizeSweepRow:
    """One line of the result file: a whole training step at one size, and its peak memory."""

    context: str
    backend: str  # of our hams: what HAM_BACKEND said
    backbone: str
    after: str
    size: int  # side of the image
    n: int | None  # positions that the context sees; None where it did not come so far, or not on maps of one size
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
    context_mb: float | None  # peak above that of `ratio_to`
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
    """The networks at one size."""

    row: ClassVar[type[SizeSweepRow]] = SizeSweepRow

    def __init__(self, plan: SizeSweepPlan, size: int) -> None:
        super().__init__(plan)
        self.size = size
        self.positions: dict[str, int | None] = {}

    def watch(self, context: str, net: nn.Module, place: str) -> None:
        """Count the positions of the map behind that submodule, also without a context there."""
        modules = dict(net.named_modules())
        if not place or place not in modules:
            raise UnknownNameError(describe_missing_module(self.plan.call, place, [name for name in modules if name]))

        inserted = modules.get(f"{place}.{CHILD_NAME}")
        layouts = [inserted.adapter.layout] if isinstance(inserted, InsertedContext) else []

        def see(module: nn.Module, args: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or output.dim() != 4:  # tokens: those of a class would count too
                return
            if not layouts:  # once is enough: steps are timed
                layouts.append(guess_layout(net, module, output))
            n = (output.shape[2:] if layouts[0] == "channels" else output.shape[1:3]).numel()  # b c h w, or b h w c
            if self.positions.setdefault(context, n) != n:  # called on maps of several sizes
                self.positions[context] = None

        modules[place].register_forward_hook(see)

    def about(self, context: str, samples: dict[str, list[float]]) -> dict[str, Any]:
        first = next(iter(self.plan.variants))
        more = None
        if context in self.peaks and first in self.peaks:
            more = round(self.peaks[context] - self.peaks[first], 1)
        fields = {"after": self.plan.after, "size": self.size, "n": self.positions.get(context), "context_mb": more}
        return fields | super().about(context, samples)


def measure(
    plan: SizeSweepPlan, contest: type[SizeSweepRace], progress: Callable[[str], object], *, steady: bool = True
) -> Iterator[Any]:
    """A row per size and context, size after size; of one, all networks take turns as in `ham bench network`."""
    with training_flags(plan.device, steady=steady):
        for size in plan.sizes:
            networks = contest(plan, size)
            samples = networks.measured(lambda what, size=size: progress(f"{size} px, {what}"))  # type: ignore[misc]
            for context in plan.variants:
                yield networks.row(**networks.about(context, samples))
            del networks
            if plan.device == "cuda":
                torch.cuda.empty_cache()
