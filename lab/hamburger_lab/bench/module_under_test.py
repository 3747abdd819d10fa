"""A benchmarked module with what all its rows share: weights, counts and float64 reference."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hamburger.errors import HamburgerError
from hamburger_lab.bench import footprint
from hamburger_lab.bench.common import WrongResultError
from hamburger_lab.bench.table3_names import COMPILED, builders
from hamburger_lab.bench.timed_module import FORMATS, BenchSetting, check_agreement

CHECK_SIZE = 16  # height and width of the image of the correctness check
REFUSALS = (HamburgerError, WrongResultError, RuntimeError)  # these leave a row empty; the benchmark continues


def refusal_reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    first, *_ = str(error).splitlines() or [type(error).__name__]
    return f"refused: {first}"


@dataclass(frozen=True)
class ModuleCounts:
    """Parameters and multiply-adds; None, with the reason in `refused`, if they could not be counted."""

    params: int | None = None
    macs: int | None = None
    refused: str = ""


class ModuleUnderTest:
    """A module by name; built once, counted once per size, checked once per dtype."""

    def __init__(self, name: str, channels: int, device: str, seed: int) -> None:
        self.name, self.channels, self.device, self.seed = name, channels, device, seed
        self.compiled = name.endswith(COMPILED)
        self._counts: dict[tuple[int, ...], ModuleCounts] = {}
        self._refusals: dict[str, str] = {}

    @functools.cached_property
    def builds(self) -> dict[str, Callable[[], nn.Module]]:
        """Return functions that return a copy of each build, by its name; copying is faster than drawing weights."""
        return {name: functools.partial(copy.deepcopy, module) for name, module in self._originals().items()}

    def _originals(self) -> dict[str, nn.Module]:
        modules = {}
        for name, build in builders(self.name, self.channels).items():
            torch.manual_seed(self.seed)
            modules[name] = build().to(self.device)
        return modules

    @functools.cached_property
    def references(self) -> list[Float64Reference]:
        return [
            Float64Reference(build().eval(), self.channels, self.device, self.seed) for build in self.builds.values()
        ]

    def counts(self, shape: tuple[int, ...]) -> ModuleCounts:
        """Return parameters and multiply-adds; they are the same for all builds."""
        if shape not in self._counts:
            build = next(iter(builders(self.name, self.channels).values()))
            try:
                self._counts[shape] = ModuleCounts(*footprint.count_params_and_macs(build, shape))
            except REFUSALS as error:
                self._counts[shape] = ModuleCounts(refused=refusal_reason(error))
        return self._counts[shape]

    def refusal(self, setting: BenchSetting, formats: Sequence[str]) -> str:
        """Return why the module does not run in this dtype (it cannot be built, or its values are wrong), else ""."""
        if setting.dtype not in self._refusals:
            try:
                for reference in self.references:
                    reference.check_values(setting, formats)
                self._refusals[setting.dtype] = ""
            except REFUSALS as error:
                self._refusals[setting.dtype] = refusal_reason(error)
        return self._refusals[setting.dtype]


class Float64Reference:
    """The float64 value of what a module adds to its input, on a small image, with zero-initialised gates opened.

    `check_values` checks that a device, precision and memory format compute the same value. That the formula is the
    paper's is checked by the tests.
    """

    def __init__(self, module: nn.Module, channels: int, device: str, seed: int) -> None:
        for name, parameter in module.named_parameters():
            if not parameter.any() and not name.endswith("bias"):
                nn.init.constant_(parameter, 0.5)
        self.module, self.seed = module, seed
        image = torch.randn(2, channels, CHECK_SIZE, CHECK_SIZE, generator=torch.Generator().manual_seed(seed))
        self.x = image.to(device)
        module.double()
        self.expected = self.residual(self.x.double())
        module.float()

    def residual(self, x: Tensor) -> Tensor:
        """What the module adds to x."""
        torch.manual_seed(self.seed)  # one module draws its dictionary in every call
        with torch.no_grad():
            return (self.module(x) - x).double()

    def check_values(self, setting: BenchSetting, formats: Sequence[str]) -> None:
        """Raise WrongResultError if a memory format gives other values than float64."""
        for name in formats:
            self.module.to(memory_format=FORMATS[name])
            with setting.autocast():
                result = self.residual(self.x.contiguous(memory_format=FORMATS[name]))
            check_agreement(setting, result, self.expected, f"{name} differs from float64")
