"""`ham bench core`: time the hams alone against the authors' code, scikit-learn and self-attention, as n grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from hamburger.environment import describe_environment
from hamburger.errors import OptionError, check_choice, check_count, check_seed
from hamburger_lab.bench import authors_reference, common, rivals
from hamburger_lab.bench.common import WrongResultError
from hamburger_lab.bench.rivals import HEADS, MODES, DecompositionInputs, Solver
from hamburger_lab.bench.timing import Contender, race

OURS, AUTHORS, SKLEARN, ATTENTION = "hamburger", "authors-eager", "sklearn", "sdpa"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Relative distance of two results in the norm. Steps at a low temperature amplify rounding, gradients even more.
TOLERANCE = {"float32": 5e-3, "float64": 1e-9}


@dataclass(frozen=True)
class CorePlan:
    """What to measure: every ham on (b, d, n) inputs of every size, in inference and in training."""

    sizes: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    dim: int = 512
    rank: int = 64
    steps: int = 6
    batch: int = 1
    dtype: str = "float32"
    repeats: int = 15
    device: str = "cpu"
    hams: tuple[str, ...] = ("nmf", "vq", "cd")
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sizes or not self.hams:
            raise OptionError("bench core: give at least one size and one ham")
        for n in self.sizes:
            check_count("bench core", "a size", n, least=2)
        for option, least in (("dim", HEADS), ("rank", 1), ("steps", 1), ("batch", 1), ("repeats", 1)):
            check_count("bench core", option, getattr(self, option), least=least)
        if self.dim % HEADS:
            raise OptionError(f"bench core: dim must be a multiple of the {HEADS} attention heads, got {self.dim}")
        for ham in self.hams:
            check_choice("bench core", "ham", ham, authors_reference.SOLVERS)
        check_seed("bench core", self.seed)
        check_choice("bench core", "dtype", self.dtype, DTYPES)
        check_choice("bench core", "device", self.device, ("cpu", "cuda"))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise OptionError("bench core: no CUDA device found; use --device cpu")

    @property
    def rounds(self) -> int:
        return len(self.sizes) * len(MODES) * (self.repeats + WARMUP)


WARMUP = 2


@dataclass(frozen=True)
class CoreRow:
    """One line of the result file. `ratio` is this contender's time divided by ours."""

    ham: str
    contender: str
    backend: str  # backend of our hams: the value of HAM_BACKEND
    b: int
    d: int
    n: int
    r: int
    steps: int
    dtype: str
    mode: str
    ms: float
    ms_iqr: float
    ratio: float
    repeats: int
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


def draw_problems(plan: CorePlan, n: int) -> Iterator[dict[str, DecompositionInputs]]:
    """Yield fresh inputs per ham without end: normal numbers, or their absolute values for a ham that needs x >= 0."""
    generator = torch.Generator(plan.device).manual_seed(plan.seed + n)
    shape = (plan.batch, plan.dim, n)

    def normal() -> Tensor:
        return torch.randn(shape, generator=generator, device=plan.device, dtype=DTYPES[plan.dtype])

    while True:
        signed, grad, inputs = normal(), normal(), {}
        for name in plan.hams:
            ham = rivals.authors_ham(name, plan.rank)
            x = signed.abs() if ham.nonnegative else signed
            inputs[name] = DecompositionInputs(x, ham.draw(plan.batch, plan.dim, like=x, generator=generator), grad)
        yield inputs


def check_equal_results(ham: str, mode: str, ours: Tensor, theirs: Tensor, dtype: str) -> None:
    """Raise WrongResultError unless both results agree up to rounding."""
    error = float((ours - theirs).norm() / theirs.norm())
    if not error <= TOLERANCE[dtype]:  # NaN must not pass
        raise WrongResultError(
            f"bench core: {ham} ({mode}) differs from the authors' code by {error:.2g} relative, more than "
            f"{TOLERANCE[dtype]:g} in {dtype}; results that disagree are not timed"
        )


def check_against_authors(plan: CorePlan, ours: Mapping[str, Solver], theirs: Mapping[str, Solver]) -> None:
    """Compare values and gradients of every ham, at the smallest and the largest size."""
    for n in sorted({min(plan.sizes), max(plan.sizes)}):
        inputs = next(draw_problems(plan, n))
        for ham in plan.hams:
            for mode, evaluate in MODES.items():
                result, expected = (evaluate(inputs[ham], solvers[ham]) for solvers in (ours, theirs))
                check_equal_results(ham, mode, result, expected, plan.dtype)


def measure(plan: CorePlan, report: Callable[[str], object] = lambda what: None) -> list[CoreRow]:
    """Check correctness, then time. All hams and rivals of one size and mode run interleaved."""
    ours = {ham: rivals.library_solver(ham, plan.rank, plan.steps) for ham in plan.hams}
    theirs = {ham: rivals.authors_solver(ham, plan.steps) for ham in plan.hams}
    check_against_authors(plan, ours, theirs)
    environment = describe_environment(plan.device)
    rows: list[CoreRow] = []
    for n in plan.sizes:
        for mode in MODES:
            fresh = draw_problems(plan, n)
            timings = race(
                _contenders(plan, mode, ours, theirs),
                lambda fresh=fresh: next(fresh),  # type: ignore[misc]
                repeats=plan.repeats,
                warmup=WARMUP,
                device=plan.device,
                after_round=lambda n=n, mode=mode: report(f"{mode} n={n:,}"),  # type: ignore[misc]
            )
            for ham in plan.hams:
                for (contender_ham, name), timing in timings.items():
                    if contender_ham not in (ham, ANY):
                        continue
                    rows.append(
                        CoreRow(
                            ham=ham,
                            contender=name,
                            backend=common.requested_backend(),
                            b=plan.batch,
                            d=plan.dim,
                            n=n,
                            r=plan.rank,
                            steps=plan.steps,
                            dtype=plan.dtype,
                            mode=mode,
                            ms=round(timing.ms, 4),
                            ms_iqr=round(timing.ms_iqr, 4),
                            ratio=round(timing.ms / timings[ham, OURS].ms, 4),
                            repeats=plan.repeats,
                            seed=plan.seed,
                            **environment,
                        )
                    )
    return rows


ANY = "any"  # attention: one measurement is compared with every ham


def _contenders(
    plan: CorePlan, mode: str, ours: Mapping[str, Solver], theirs: Mapping[str, Solver]
) -> dict[tuple[str, str], Contender]:
    """Return contenders by (ham, name); each uses the inputs of its ham."""

    def for_ham(ham: str, contender: Contender) -> Contender:
        def prepare(inputs: dict[str, DecompositionInputs]) -> tuple[Any, ...]:
            return contender.prepare(inputs[ham])

        return Contender(prepare, contender.run)

    contenders: dict[tuple[str, str], Contender] = {}
    for ham in plan.hams:
        contenders[ham, OURS] = for_ham(ham, rivals.solver_contender(ours[ham], mode))
        contenders[ham, AUTHORS] = for_ham(ham, rivals.solver_contender(theirs[ham], mode))
        # scikit-learn is an optional dependency
        if ham == "nmf" and mode == "infer" and plan.device == "cpu" and find_spec("sklearn"):
            contenders[ham, SKLEARN] = for_ham(ham, rivals.sklearn_contender(plan.steps))
    if mode == "infer":
        contenders[ANY, ATTENTION] = for_ham(plan.hams[0], rivals.attention_contender())
    return contenders
