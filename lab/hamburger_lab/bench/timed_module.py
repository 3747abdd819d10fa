"""One module on one device in one precision: the two calls that are measured, and their clock."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hamburger_lab.bench import footprint
from hamburger_lab.bench.common import GateError
from hamburger_lab.bench.timing import time_call

# float32 is full float32; tf32 is float32 with the matrix units' short mantissa; bfloat16 is autocast.
DTYPES = ("float32", "tf32", "bfloat16")
# Allowed error of the gate, against float64, relative. The cold softmax of VQ and CD amplifies a short mantissa.
TOLERANCE = {"float32": 1e-3, "tf32": 0.1, "bfloat16": 0.3}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
# A call below SHORT_MS, waited for, is mostly launch jitter: such calls run back to back, about BLOCK_MS a block.
SHORT_MS, BLOCK_MS, MOST_CALLS = 5.0, 20.0, 100
PROBE_MS = 5.0  # a block that only has to tell candidates apart
LONG_MS = 50.0  # a call this long is not tried in a second memory format, nor often
SURE_MS = 200.0  # nothing that disturbs a short call makes it this long: once tells
# Samples that a median has at the least, whatever the seconds; fewer where one call takes longer than ENDLESS_MS.
MIN_SAMPLES, MIN_SAMPLES_LONG, VERY_LONG_MS = 5, 2, 5000.0


@dataclass(frozen=True)
class BenchSetting:
    """What all modules of one benchmark share."""

    device: str
    dtype: str
    seed: int = 0
    repeats: int = 20  # samples, each a call or a block of them
    seconds: float = 2.0  # spent on one row, both modes and all that is tried, beyond the least samples

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.dtype == "bfloat16")

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """The flags of the dtype, put back afterwards."""
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.dtype != "float32"
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    def samples(self, ms: float, seconds: float) -> int:
        """How many to take of a call that long: `repeats` within the seconds left, never fewer than a spread needs."""
        least = MIN_SAMPLES if ms <= VERY_LONG_MS else MIN_SAMPLES_LONG
        return max(least, min(self.repeats, int(seconds * 1e3 / (max(ms, 1e-3) * calls_per_sample(ms)))))


def calls_per_sample(ms: float, fill: float = BLOCK_MS) -> int:
    """How many calls of that length make one sample, or fill so many ms."""
    return 1 if ms >= SHORT_MS else min(MOST_CALLS, round(fill / max(ms, 1e-3)))


def check_agreement(setting: BenchSetting, result: Tensor, expected: Tensor, what: str) -> None:
    error = float((result - expected).norm() / expected.norm())
    if not error <= TOLERANCE[setting.dtype]:  # NaN must not pass
        raise GateError(f"{what} by {error:.2g} relative, more than {TOLERANCE[setting.dtype]:g}")


class TimedModule:
    """One way to build a module, in one memory format, with its inputs."""

    INPUTS = 3  # in turn: one alone would sit in the cache

    def __init__(
        self,
        setting: BenchSetting,
        build: Callable[[], nn.Module],
        shape: tuple[int, ...],
        *,
        memory_format: str = "contiguous",
        compiled: bool = False,
    ) -> None:
        torch.manual_seed(setting.seed)
        self.setting, layout = setting, FORMATS[memory_format]
        self.module = build().to(setting.device)
        self.module.to(memory_format=layout)
        self.parameters = list(self.module.parameters())
        self.call = torch.compile(self.module, dynamic=False) if compiled else self.module
        generator = torch.Generator(setting.device).manual_seed(setting.seed)
        # inside a network under autocast the layer before has emitted half precision already
        dtype = torch.bfloat16 if setting.dtype == "bfloat16" else torch.float32

        def normal() -> Tensor:
            drawn = torch.randn(shape, generator=generator, device=setting.device)
            return drawn.to(dtype).contiguous(memory_format=layout)

        self.inputs = [normal() for _ in range(self.INPUTS)]
        self.cotangent = normal()
        self.turns = itertools.cycle(self.inputs)

    def prepare(self, mode: str) -> None:
        """What is no part of the call, done before the clock starts."""
        self.module.train(mode == "train")
        self.module.zero_grad(set_to_none=True)

    def infer(self, x: Tensor) -> Tensor:
        with torch.no_grad(), self.setting.autocast():
            return self.call(x)

    def train(self, x: Tensor) -> None:
        """Forward and backward, the gradient of the input included, as inside a network."""
        x = x.detach().requires_grad_()
        with self.setting.autocast():
            y = self.call(x)
        y.backward(self.cotangent.to(y.dtype))

    def back_to_back(self, mode: str, inputs: Sequence[Tensor]) -> object:
        """One call an input. Gradients are dropped between, so that none is added to the last: no work for a device."""
        run = getattr(self, mode)
        for x in inputs[:-1]:
            run(x)
            for parameter in self.parameters:
                parameter.grad = None
        return run(inputs[-1])

    def once(self, mode: str, calls: int = 1) -> float:
        """Milliseconds of one call, out of so many between two looks at the clock."""
        self.prepare(mode)
        inputs = [next(self.turns) for _ in range(calls)]
        return time_call(self.back_to_back, (mode, inputs), self.setting.device) / calls

    def warm(self, mode: str) -> None:
        """The first call, which pays for handles, workspaces and compilation; a compiled module is looked at here."""
        self.once(mode)
        if mode == "infer" and self.call is not self.module:
            self.check()

    def probe(self, mode: str) -> float:
        """About how many ms one call takes, when it is warm.

        The least of a few: a disturbed call must not make a short module a long one, which no block would time.
        """
        first = self.once(mode)
        if first > SURE_MS:
            return first
        first = min(first, self.once(mode))
        if first > LONG_MS:
            return first
        calls = calls_per_sample(first, PROBE_MS)
        samples = [self.once(mode, calls) for _ in range(2)]
        return min(samples) if calls > 1 else min(first, *samples)

    def check(self) -> None:
        """A compiled module must still answer as itself."""
        with torch.no_grad(), self.setting.autocast():
            result, expected = self.call(self.inputs[0]).double(), self.module(self.inputs[0]).double()
        check_agreement(self.setting, result, expected, "compiled it differs")

    def peak(self, mode: str) -> float:
        """With one input resident, as in the paper."""
        self.prepare(mode)
        resident = [*self.module.parameters(), *self.module.buffers(), self.inputs[0]]
        run = getattr(self, mode)
        return footprint.peak_mib(lambda: run(self.inputs[0]), resident, self.setting.device)

    def samples(self, mode: str, count: int, calls: int = 1) -> list[float]:
        """Milliseconds of a call, that many times, each out of so many calls.

        No garbage is collected between: it would be counted in whatever is timed then.
        """
        gc.disable()
        try:
            return [self.once(mode, calls) for _ in range(count)]
        finally:
            gc.enable()
