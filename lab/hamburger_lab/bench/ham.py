"""`ham bench ham`: time the ham alone, each backend against its roofline."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hamburger.environment import describe_environment
from hamburger.errors import OptionError, check_choice, check_count, check_seed
from hamburger.hams import Ham, hams, one_step
from hamburger.hams.decompose import solve_ham
from hamburger.kernels.dispatch import why_not_fused
from hamburger_lab.bench.common import WrongResultError
from hamburger_lab.bench.roofline import DeviceRates, floor_ms
from hamburger_lab.bench.timed_module import TOLERANCE, calls_per_sample
from hamburger_lab.bench.timing import Timing, time_call

if TYPE_CHECKING:
    from rich.table import Table

HAMS = ("nmf", "vq", "cd")
BACKENDS = ("plain", "fused")
MODES = ("infer", "train")
# float32 is full float32; tf32 is float32 with TF32 tensor cores
DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
TOLERANCES = TOLERANCE | {"float16": TOLERANCE["tf32"]}  # as many digits
CHECK_POSITIONS = 1000  # most positions of the input of the correctness check
INPUTS = 3  # used in turn: a single input would stay in the cache


@dataclass(frozen=True)
class HamAlonePlan:
    sizes: tuple[int, ...] = (16384,)
    dim: int = 512
    rank: int = 64
    steps: int = 6
    batch: int = 1
    dtypes: tuple[str, ...] = ("float32",)
    hams: tuple[str, ...] = HAMS
    backends: tuple[str, ...] = ("plain",)
    modes: tuple[str, ...] = MODES
    repeats: int = 20
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        for n in self.sizes:
            check_count("bench ham", "a size", n, least=1)
        for option, least in (("dim", 1), ("rank", 1), ("steps", 0), ("batch", 1), ("repeats", 2)):
            check_count("bench ham", option, getattr(self, option), least=least)
        check_seed("bench ham", self.seed)
        check_choice("bench ham", "device", self.device, ("cpu", "cuda"))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise OptionError("bench ham: no CUDA device found; use --device cpu")
        named = {"ham": (self.hams, HAMS), "backend": (self.backends, BACKENDS), "mode": (self.modes, MODES)}
        for what, (requested, known) in (named | {"dtype": (self.dtypes, tuple(DTYPES))}).items():
            if not requested:
                raise OptionError(f"bench ham: give at least one {what}; known: {', '.join(known)}")
            for name in requested:
                check_choice("bench ham", what, name, known)
        if self.device == "cpu" and "tf32" in self.dtypes:
            raise OptionError("bench ham: tf32 is a mode of cuda; use --dtype float32 on a CPU")
        self._check_fused()

    def _check_fused(self) -> None:
        if "fused" not in self.backends:
            return
        for ham, dtype in itertools.product(self.hams, self.dtypes):
            x = torch.empty(1, 1, 1, dtype=DTYPES[dtype], device=self.device)
            value = hams.create(ham, rank=self.rank)
            reason = why_not_fused(value.fused_spec(), x, value, one_step, one_step=True)
            if reason is not None:
                raise OptionError(f"bench ham: backend 'fused' cannot run here: {reason}; use --backends plain")

    @property
    def rows(self) -> int:
        axes = (self.sizes, self.dtypes, self.hams, self.modes, self.backends)
        return len(list(itertools.product(*axes)))


@dataclass(frozen=True)
class HamAloneRow:
    """One line of the result file. `fraction_of_floor` is the roofline time divided by the measured time: at most 1."""

    ham: str
    backend: str
    b: int
    d: int
    n: int
    r: int
    steps: int
    dtype: str
    mode: str
    ms: float
    ms_iqr: float | None
    fraction_of_floor: float
    floor_ms: float
    tflops: float  # measured rates behind the roofline time `floor_ms`
    gbs: float
    repeats: int
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


class HamProblem:
    """One ham with inputs that are used in turn."""

    def __init__(self, plan: HamAlonePlan, name: str, n: int, dtype: torch.dtype) -> None:
        generator = torch.Generator(plan.device).manual_seed(plan.seed + n)

        def normal() -> Tensor:
            return torch.randn(plan.batch, plan.dim, n, generator=generator, device=plan.device)

        self.ham: Ham = hams.create(name, rank=plan.rank)
        self.steps, self.device = plan.steps, plan.device
        inputs = [normal() for _ in range(INPUTS)]
        self.inputs = [(x.abs() if self.ham.nonnegative else x).to(dtype) for x in inputs]
        self.cotangent = normal().to(dtype)
        self.bases = self.ham.draw(plan.batch, plan.dim, like=self.cotangent[:0].float(), generator=generator)

    def solve(self, x: Tensor, backend: str) -> Tensor:
        bases = self.bases.to(torch.promote_types(x.dtype, torch.float32))
        return solve_ham(x, self.ham, steps=self.steps, grad=one_step, bases=bases, backend=backend).reconstruction

    def infer(self, x: Tensor, backend: str) -> Tensor:
        with torch.no_grad():
            return self.solve(x, backend)

    def train(self, x: Tensor, backend: str) -> Tensor:
        """Run forward and backward; return the gradient with respect to x."""
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.solve(x, backend), x, self.cotangent.to(x.dtype))[0]

    def check_values(self, backend: str, mode: str, dtype: str) -> None:
        """Raise WrongResultError unless the result agrees with plain float64 on the same input."""
        call, x = getattr(self, mode), self.inputs[0]
        expected, result = call(x.double(), "plain"), call(x, backend).double()
        error = float((result - expected).norm() / expected.norm())
        if not error <= TOLERANCES[dtype]:  # NaN must not pass
            raise WrongResultError(
                f"bench ham: {type(self.ham).__name__} ({backend}, {mode}) differs from float64 by {error:.2g} "
                f"relative, more than {TOLERANCES[dtype]:g} in {dtype}; wrong results are not timed"
            )

    def ms(self, backend: str, mode: str, repeats: int) -> Timing:
        """Time the call. Short calls run back to back in blocks: timed one by one, they would measure launch jitter."""
        call, turns = getattr(self, mode), itertools.cycle(self.inputs)

        def back_to_back(xs: Sequence[Tensor]) -> Tensor:
            for x in xs[:-1]:
                call(x, backend)  # the result is dropped, as the next layer of a network would
            return call(xs[-1], backend)

        def once(calls: int) -> float:
            return time_call(back_to_back, ([next(turns) for _ in range(calls)],), self.device) / calls

        calls = calls_per_sample(min(once(1) for _ in range(3)))
        return Timing.of([once(calls) for _ in range(repeats)])


def measure(plan: HamAlonePlan, before: Callable[[str], object] = lambda what: None) -> Iterator[HamAloneRow]:
    """Yield one row after the other, each after its correctness check."""
    environment = describe_environment(plan.device)
    for dtype in plan.dtypes:
        with precision(dtype):
            rates = DeviceRates.here(plan.device, DTYPES[dtype])
            for n, name in itertools.product(plan.sizes, plan.hams):
                small = HamProblem(plan, name, min(n, CHECK_POSITIONS), DTYPES[dtype])
                problem = HamProblem(plan, name, n, DTYPES[dtype])
                for mode, backend in itertools.product(plan.modes, plan.backends):
                    before(f"{name} {backend} {mode} n={n:,} {dtype}")
                    small.check_values(backend, mode, dtype)
                    timing = problem.ms(backend, mode, plan.repeats)
                    sizes = (plan.batch, plan.dim, n, plan.rank, plan.steps)
                    least = floor_ms(name, mode, *sizes, DTYPES[dtype].itemsize, rates)
                    yield HamAloneRow(
                        ham=name,
                        backend=backend,
                        b=plan.batch,
                        d=plan.dim,
                        n=n,
                        r=plan.rank,
                        steps=plan.steps,
                        dtype=dtype,
                        mode=mode,
                        ms=round(timing.ms, 4),
                        ms_iqr=None if timing.ms_iqr is None else round(timing.ms_iqr, 4),
                        fraction_of_floor=round(least / timing.ms, 4),
                        floor_ms=round(least, 4),
                        tflops=round(rates.tflops, 2),
                        gbs=round(rates.gbs, 1),
                        repeats=plan.repeats,
                        seed=plan.seed,
                        **environment,
                    )


@contextlib.contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Allow TF32 matrix products for dtype "tf32" only; restore the flag afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def ham_table(rows: Sequence[HamAloneRow]) -> Table:
    from rich.table import Table

    first = rows[0]
    table = Table(
        title=f"the ham alone: b={first.b} d={first.d} r={first.r} K={first.steps}, median of {first.repeats}",
        caption=f"{first.hardware}, torch {first.torch}; roofline: the larger of arithmetic at the rate of a matrix "
        "product and bytes at the rate of a copy, both measured in this run",
    )
    for heading in ("ham", "backend", "mode", "dtype"):
        table.add_column(heading)
    for heading in ("n", "ms", "IQR", "roofline ms", "of roofline"):
        table.add_column(heading, justify="right")
    for row in rows:
        spread = "" if row.ms_iqr is None else f"{row.ms_iqr:.3f}"
        times = (f"{row.n:,}", f"{row.ms:.3f}", spread, f"{row.floor_ms:.3f}", f"{row.fraction_of_floor:.2f}")
        table.add_row(row.ham, row.backend, row.mode, row.dtype, *times)
    return table
