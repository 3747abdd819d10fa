"""Time one module on one device in one precision: inference, and forward with backward."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hamburger_lab.bench import footprint
from hamburger_lab.bench.common import WrongResultError
from hamburger_lab.bench.timing import time_call

# float32 is full float32; tf32 is float32 with TF32 tensor cores; bfloat16 is autocast.
DTYPES = ("float32", "tf32", "bfloat16")
# Largest relative error against float64. VQ and CD at temperature 0.01 amplify the rounding of short mantissas.
TOLERANCE = {"float32": 1e-3, "tf32": 0.1, "bfloat16": 0.3}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
# A call below SHORT_MS timed alone is mostly launch jitter: such calls run back to back in blocks of about BLOCK_MS.
SHORT_MS, BLOCK_MS, MOST_CALLS = 5.0, 20.0, 100
PROBE_MS = 5.0  # length of a block that only compares candidates
LONG_MS = 50.0  # longer calls are not tried in a second memory format, and probed less often
SURE_MS = 200.0  # no disturbance makes a short call this long, so one probe is enough
# Fewest samples of a median, independent of the time budget; fewer if one call takes longer than VERY_LONG_MS.
MIN_SAMPLES, MIN_SAMPLES_LONG, VERY_LONG_MS = 5, 2, 5000.0


@dataclass(frozen=True)
class BenchSetting:
    """What all modules of one benchmark share."""

    device: str
    dtype: str
    seed: int = 0
    repeats: int = 20  # samples, each a call or a block of calls
    seconds: float = 2.0  # time budget of one row: both modes and all candidates; the fewest samples are always taken

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.dtype == "bfloat16")

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Set the TF32 flags of the dtype and restore them afterwards."""
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.dtype != "float32"
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    def samples(self, ms: float, seconds: float) -> int:
        """Return the number of samples of a call that takes `ms`: up to `repeats` within the seconds left."""
        least = MIN_SAMPLES if ms <= VERY_LONG_MS else MIN_SAMPLES_LONG
        return max(least, min(self.repeats, int(seconds * 1e3 / (max(ms, 1e-3) * calls_per_sample(ms)))))


def calls_per_sample(ms: float, fill: float = BLOCK_MS) -> int:
    """Return the number of calls of that length that fill one sample of `fill` milliseconds."""
    return 1 if ms >= SHORT_MS else min(MOST_CALLS, round(fill / max(ms, 1e-3)))


def check_agreement(setting: BenchSetting, result: Tensor, expected: Tensor, what: str) -> None:
    """Raise WrongResultError if the relative error exceeds the tolerance of the dtype."""
    error = float((result - expected).norm() / expected.norm())
    if not error <= TOLERANCE[setting.dtype]:  # NaN must not pass
        raise WrongResultError(f"{what} by {error:.2g} relative, more than {TOLERANCE[setting.dtype]:g}")


class TimedModule:
    """A module built in one way and memory format, with its inputs."""

    INPUTS = 3  # used in turn: a single input would stay in the cache

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
        # inside a network under autocast the previous layer returns half precision
        dtype = torch.bfloat16 if setting.dtype == "bfloat16" else torch.float32

        def normal() -> Tensor:
            drawn = torch.randn(shape, generator=generator, device=setting.device)
            return drawn.to(dtype).contiguous(memory_format=layout)

        self.inputs = [normal() for _ in range(self.INPUTS)]
        self.cotangent = normal()
        self.turns = itertools.cycle(self.inputs)

    def prepare(self, mode: str) -> None:
        """Set the mode and drop gradients; this is not timed."""
        self.module.train(mode == "train")
        self.module.zero_grad(set_to_none=True)

    def infer(self, x: Tensor) -> Tensor:
        with torch.no_grad(), self.setting.autocast():
            return self.call(x)

    def train(self, x: Tensor) -> None:
        """Run forward and backward, including the gradient of the input, as inside a network."""
        x = x.detach().requires_grad_()
        with self.setting.autocast():
            y = self.call(x)
        y.backward(self.cotangent.to(y.dtype))

    def back_to_back(self, mode: str, inputs: Sequence[Tensor]) -> object:
        """Run one call per input; gradients are dropped in between, so that none are accumulated."""
        run = getattr(self, mode)
        for x in inputs[:-1]:
            run(x)
            for parameter in self.parameters:
                parameter.grad = None
        return run(inputs[-1])

    def once(self, mode: str, calls: int = 1) -> float:
        """Return the milliseconds of one call, the mean over a block of `calls`."""
        self.prepare(mode)
        inputs = [next(self.turns) for _ in range(calls)]
        return time_call(self.back_to_back, (mode, inputs), self.setting.device) / calls

    def warm(self, mode: str) -> None:
        """Make the first call, which pays for handles, workspaces and compilation; check a compiled module."""
        self.once(mode)
        if mode == "infer" and self.call is not self.module:
            self.check()

    def probe(self, mode: str) -> float:
        """Return about how many milliseconds one warm call takes.

        The least of a few: one disturbed call must not make a short module look long.
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
        """Raise WrongResultError if the compiled module differs from the module itself."""
        with torch.no_grad(), self.setting.autocast():
            result, expected = self.call(self.inputs[0]).double(), self.module(self.inputs[0]).double()
        check_agreement(self.setting, result, expected, "compiled it differs")

    def peak(self, mode: str) -> float:
        """Return the peak memory in MiB with one input resident, as in the paper."""
        self.prepare(mode)
        resident = [*self.module.parameters(), *self.module.buffers(), self.inputs[0]]
        run = getattr(self, mode)
        return footprint.peak_mib(lambda: run(self.inputs[0]), resident, self.setting.device)

    def samples(self, mode: str, count: int, calls: int = 1) -> list[float]:
        """Return `count` samples of the milliseconds of a call, each the mean over a block of `calls`.

        Garbage collection is off: it would fall into a timed call.
        """
        gc.disable()
        try:
            return [self.once(mode, calls) for _ in range(count)]
        finally:
            gc.enable()
