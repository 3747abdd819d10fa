"""`ham bench gradients`: time and memory of each gradient of a ham."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hamburger.environment import describe_environment
from hamburger.errors import ImplicitGradientError, OptionError, check_choice, check_count
from hamburger.hams import as_gradient
from hamburger.hams.decompose import solve_ham
from hamburger_lab.bench import footprint
from hamburger_lab.bench import ham as bench
from hamburger_lab.bench.timing import Contender, race

if TYPE_CHECKING:
    from rich.table import Table

GRADIENTS = ("one-step", "truncated:1", "truncated:2", "bptt", "implicit")


@dataclass(frozen=True)
class GradientPlan:
    """What to measure, in float32 by plain torch: the kernels have the one-step gradient only."""

    sizes: tuple[int, ...] = (4096,)
    steps: tuple[int, ...] = (6, 24)
    dim: int = 512
    rank: int = 64
    batch: int = 1
    hams: tuple[str, ...] = bench.HAMS
    gradients: tuple[str, ...] = GRADIENTS
    repeats: int = 10
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        for option in ("sizes", "steps", "hams", "gradients"):
            if not getattr(self, option):
                raise OptionError(f"bench gradients: give at least one value of {option}")
        for steps in self.steps:
            check_count("bench gradients", "a number of steps", steps, least=1)
        check_count("bench gradients", "repeats", self.repeats, least=5)  # fewer have no meaningful quartiles
        for name in self.gradients:
            as_gradient(name)
        for name in self.hams:
            check_choice("bench gradients", "ham", name, bench.HAMS)
        for n, steps in itertools.product(self.sizes, self.steps):
            self.ham_plan(n, steps)  # checks the other options

    def ham_plan(self, n: int, steps: int) -> bench.HamAlonePlan:
        """Return the plan of `bench ham` for one size and number of steps."""
        return bench.HamAlonePlan(
            sizes=(n,),
            dim=self.dim,
            rank=self.rank,
            steps=steps,
            batch=self.batch,
            hams=self.hams,
            repeats=self.repeats,
            device=self.device,
            seed=self.seed,
        )

    @property
    def cases(self) -> int:
        return len(self.hams) * len(self.sizes) * len(self.steps)


@dataclass(frozen=True)
class GradientRow:
    """One line of the result file: forward and backward of the ham alone; `refused` says why there is no gradient."""

    ham: str
    grad: str
    b: int
    d: int
    n: int
    r: int
    steps: int
    dtype: str
    ms: float
    ms_iqr: float
    mb: float
    refused: str | None
    repeats: int
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


def input_gradient(problem: bench.HamProblem, x: Tensor, grad: str) -> Tensor | None:
    """Return dL/dx (b, d, n), or None if the implicit gradient refuses, after all of its work."""
    x = x.detach().requires_grad_()
    out = solve_ham(x, problem.ham, steps=problem.steps, grad=as_gradient(grad), bases=problem.bases, backend="plain")
    try:
        return torch.autograd.grad(out.reconstruction, x, problem.cotangent)[0]
    except ImplicitGradientError:
        return None


def measure(plan: GradientPlan, before: Callable[[str], object] = lambda what: None) -> Iterator[GradientRow]:
    """Yield the rows of all gradients for each ham, size and number of steps."""
    environment = describe_environment(plan.device)
    with bench.precision("float32"):
        for n, steps, name in itertools.product(plan.sizes, plan.steps, plan.hams):
            before(f"{name} n={n:,} K={steps}")
            yield from _race_gradients(
                plan, bench.HamProblem(plan.ham_plan(n, steps), name, n, torch.float32), name, n, environment
            )


def _race_gradients(
    plan: GradientPlan, problem: bench.HamProblem, name: str, n: int, environment: dict[str, object]
) -> Iterator[GradientRow]:
    turns = itertools.cycle(problem.inputs)
    first = problem.inputs[0]
    calls = {grad: partial(input_gradient, problem, grad=grad) for grad in plan.gradients}
    contenders = {grad: Contender(lambda x: (x,), call) for grad, call in calls.items()}
    times = race(contenders, lambda: next(turns), repeats=plan.repeats, device=plan.device)
    for grad, timing in times.items():
        resident = [first, problem.bases, problem.cotangent]
        peak = footprint.peak_mib(partial(calls[grad], first), resident, plan.device)
        yield GradientRow(
            ham=name,
            grad=grad,
            b=plan.batch,
            d=plan.dim,
            n=n,
            r=plan.rank,
            steps=problem.steps,
            dtype="float32",
            ms=round(timing.ms, 4),
            ms_iqr=round(timing.ms_iqr, 4),
            mb=round(peak, 2),
            refused="not near a fixed point" if calls[grad](first) is None else None,
            repeats=plan.repeats,
            seed=plan.seed,
            **environment,  # type: ignore[arg-type]
        )


def gradients_table(rows: Sequence[GradientRow]) -> Table:
    from rich.table import Table

    first = rows[0]
    table = Table(
        title=f"forward and backward of the ham alone: b={first.b} d={first.d} r={first.r}, median of {first.repeats}",
        caption=f"{first.hardware}, torch {first.torch}, float32, plain torch; MiB: peak memory, including the input",
    )
    for heading in ("ham", "gradient"):
        table.add_column(heading)
    for heading in ("n", "K", "ms", "IQR", "MiB"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        times = (f"{row.n:,}", str(row.steps), f"{row.ms:.2f}", f"{row.ms_iqr:.2f}", f"{row.mb:.1f}")
        table.add_row(row.ham, row.grad, *times, f"refused: {row.refused}" if row.refused else "")
    return table
