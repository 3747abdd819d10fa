"""`ham bench table3`: every context module at one size or many, as the paper's Table 3 compares them."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from hamburger.bench import footprint, paper
from hamburger.bench.authors import AuthorsNMF
from hamburger.bench.gate import GateError
from hamburger.bench.timing import Timing, clock
from hamburger.environment import Environment
from hamburger.errors import OptionError, check_choice, check_count, check_positive, check_seed
from hamburger.layers.context import contexts, create_context

# What a context's defaults do not show: the authors' own layer, attention as the paper ran it and as one would today.
# Several ways to build one: the fastest counts, and its row says which it was.
VARIANTS: dict[str, dict[str, Callable[[int], nn.Module]]] = {
    "authors-nmf": {"": AuthorsNMF},
    "sa-materialised": {"": lambda c: create_context("sa", c, materialise=True)},
    # flash kernels take at most 256 channels a head
    "sa-flash": {f"heads={h}": lambda c, h=h: create_context("sa", c, heads=h) for h in (2, 8)},  # type: ignore[misc]
}
COMPILED = "+compile"
# float32 is full float32; tf32 is float32 with the matrix units' short mantissa; bfloat16 is autocast.
DTYPES = ("float32", "tf32", "bfloat16")
# Allowed error of the gate, against float64, relative. The cold softmax of VQ and CD amplifies a short mantissa.
TOLERANCE = {"float32": 1e-3, "tf32": 0.1, "bfloat16": 0.3}
GATE_SIZE = 256


@dataclass(frozen=True)
class Plan:
    modules: tuple[str, ...]
    sizes: tuple[int, ...] = (paper.SIZE,)
    channels: int = paper.CHANNELS
    batch: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    repeats: int = 20
    seconds: float = 2.0  # spent on one timing at most, beyond its first calls
    max_macs: float = math.inf  # of one evaluation; what needs more is counted, not run
    seed: int = 0

    def __post_init__(self) -> None:
        for module in self.modules:
            check_choice("bench table3", "module", module.removesuffix(COMPILED), names())
        if not self.modules or not self.sizes:
            raise OptionError("bench table3: give at least one module and one size")
        for n in self.sizes:
            check_count("bench table3", "a size", n, least=16)
        for option in ("channels", "batch", "repeats"):
            check_count("bench table3", option, getattr(self, option), least=1)
        check_seed("bench table3", self.seed)
        check_positive("bench table3", "seconds", self.seconds, zero=True)
        check_choice("bench table3", "device", self.device, ("cpu", "cuda"))
        check_choice("bench table3", "dtype", self.dtype, DTYPES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise OptionError("bench table3: there is no CUDA device here; take --device cpu")
        if self.device == "cpu" and self.dtype == "tf32":
            raise OptionError("bench table3: tf32 is a mode of CUDA devices; take --dtype float32 or bfloat16")


@dataclass(frozen=True)
class Row:
    """One line of the result file. Times are medians in ms, memory is the peak in MiB; None where it did not fit."""

    module: str
    n: int
    params: int
    macs: int
    infer_ms: float | None
    infer_ms_iqr: float | None
    train_ms: float | None
    train_ms_iqr: float | None
    infer_mb: float | None
    train_mb: float | None
    note: str
    dtype: str
    channels: int
    batch: int
    repeats: int
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


def names() -> list[str]:
    return [*contexts.names(), *VARIANTS]


def builders(module: str, channels: int) -> dict[str, Callable[[], nn.Module]]:
    """The ways to build it, by the note that tells them apart."""
    name = module.removesuffix(COMPILED)
    ways = VARIANTS.get(name, {"": lambda c: create_context(name, c)})
    return {note: lambda way=way: way(channels) for note, way in ways.items()}  # type: ignore[misc]


def measure(plan: Plan, progress: Callable[[str], object] = lambda _: None) -> Iterator[Row]:
    """One row per module and size, small sizes first, so that what is cut short has lost the least."""
    environment = asdict(Environment.here(plan.device))
    with precision(plan.dtype, plan.device) as autocast:
        refused = {module: _refusal(plan, module, autocast) for module in plan.modules}
        for n in sorted(plan.sizes):
            for module in plan.modules:
                progress(f"{module} n={n}")
                ways = builders(module, plan.channels)
                rows = [
                    _row(plan, module, note, build, n, autocast, environment, refused[module])
                    for note, build in ways.items()
                ]
                yield _best(rows)


def _best(rows: list[Row]) -> Row:
    """The fastest way for each mode, which need not be the same one; the note names both."""
    infer = min(rows, key=lambda row: (row.infer_ms is None, row.infer_ms))
    train = min(rows, key=lambda row: (row.train_ms is None, row.train_ms))
    if infer is train:
        return infer
    note = f"inference: {infer.note}; training: {train.note}"
    return replace(infer, note=note, train_ms=train.train_ms, train_ms_iqr=train.train_ms_iqr, train_mb=train.train_mb)


def _refusal(plan: Plan, module: str, autocast: Callable[[], contextlib.AbstractContextManager[object]]) -> str:
    """Why the gate keeps a module out; empty where it passes."""
    try:
        for build in builders(module, plan.channels).values():
            gate(plan, build, autocast)
    except GateError as refusal:
        return f"refused: {refusal}"
    return ""


def image(n: int) -> tuple[int, int]:
    """The squarest h x w with h * w = n."""
    h = max(h for h in range(1, int(n**0.5) + 1) if n % h == 0)
    return h, n // h


@contextlib.contextmanager
def precision(dtype: str, device: str) -> Iterator[Callable[[], contextlib.AbstractContextManager[object]]]:
    """The flags of that precision, put back afterwards; gives the context for each call."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = dtype != "float32"
    try:
        yield lambda: torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16")
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def gate(
    plan: Plan, build: Callable[[], nn.Module], autocast: Callable[[], contextlib.AbstractContextManager[object]]
) -> None:
    """What a module adds to its input, zero gates opened, against itself in float64 on a small image.

    It shows that this device and precision compute the formula; that the formula is its paper's, the tests show.
    """
    torch.manual_seed(plan.seed)
    module = build().eval().to(plan.device)
    for name, parameter in module.named_parameters():
        if not parameter.any() and not name.endswith("bias"):
            nn.init.constant_(parameter, 0.5)
    x = torch.randn(2, plan.channels, *image(GATE_SIZE)).to(plan.device)

    def added(x: Tensor) -> Tensor:
        torch.manual_seed(plan.seed)  # for the one that draws its dictionary in every call
        return (module(x) - x).double()

    with torch.no_grad():
        module.double()
        expected = added(x.double())
        module.float()
        with autocast():
            found = added(x)
    error = float((found - expected).norm() / expected.norm())
    if not error <= TOLERANCE[plan.dtype]:  # NaN must not pass
        raise GateError(f"differs from float64 by {error:.2g} relative, more than {TOLERANCE[plan.dtype]:g}")


def _row(
    plan: Plan,
    name: str,
    note: str,
    build: Callable[[], nn.Module],
    n: int,
    autocast: Callable[[], contextlib.AbstractContextManager[object]],
    environment: dict[str, object],
    refused: str,
) -> Row:
    shape = (plan.batch, plan.channels, *image(n))
    params, macs = footprint.counts(build, shape)
    printed = name in paper.TABLE3 and n == paper.SIZE and plan.channels == paper.CHANNELS and plan.batch == 1
    said = [note] if note else []
    said += paper.notes(name, params, macs) if printed else []
    found: dict[str, float] = {}
    if refused or macs > plan.max_macs:
        said.append(refused or f"not run: more than {plan.max_macs:.0e} multiply-adds")
    else:
        try:
            for measured in _measure_case(plan, name, build, shape, autocast):
                found.update(measured)
        except torch.OutOfMemoryError:
            said.append("out of memory")
        except GateError as refusal:
            said.append(f"refused: {refusal}")
    if plan.device == "cuda":
        torch.cuda.empty_cache()
    return Row(
        module=name,
        n=n,
        params=params,
        macs=macs,
        **{field: found.get(field) for field in MEASURED},  # type: ignore[arg-type]
        note="; ".join(said),
        dtype=plan.dtype,
        channels=plan.channels,
        batch=plan.batch,
        repeats=plan.repeats,
        seed=plan.seed,
        **environment,  # type: ignore[arg-type]
    )


MEASURED = ("infer_ms", "infer_ms_iqr", "train_ms", "train_ms_iqr", "infer_mb", "train_mb")


def _measure_case(
    plan: Plan,
    name: str,
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    autocast: Callable[[], contextlib.AbstractContextManager[object]],
) -> Iterator[dict[str, float]]:
    """Inference, then training: where only the second does not fit, the first is kept."""
    case = Case(plan, build, shape, autocast, compiled=name.endswith(COMPILED))
    for mode in ("infer", "train"):
        peak, timing = case.peak(mode), case.time(mode)
        yield {
            f"{mode}_mb": round(peak, 2),
            f"{mode}_ms": round(timing.ms, 4),
            f"{mode}_ms_iqr": round(timing.ms_iqr, 4),
        }


class Case:
    """One module on one device, its inputs, and the two calls that are measured."""

    INPUTS = 3  # in turn: one alone would sit in the cache

    def __init__(
        self,
        plan: Plan,
        build: Callable[[], nn.Module],
        shape: tuple[int, ...],
        autocast: Callable[[], contextlib.AbstractContextManager[object]],
        *,
        compiled: bool,
    ) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.autocast = plan, autocast
        self.module = build().to(plan.device)
        self.call = torch.compile(self.module, dynamic=False) if compiled else self.module
        generator = torch.Generator(plan.device).manual_seed(plan.seed)
        # inside a network under autocast the layer before has emitted half precision already
        dtype = torch.bfloat16 if plan.dtype == "bfloat16" else torch.float32

        def normal() -> Tensor:
            return torch.randn(shape, generator=generator, device=plan.device).to(dtype)

        self.inputs = [normal() for _ in range(self.INPUTS)]
        self.cotangent = normal()

    def prepare(self, mode: str) -> None:
        """What is no part of the call, done before the clock starts."""
        self.module.train(mode == "train")
        self.module.zero_grad(set_to_none=True)

    def infer(self, x: Tensor) -> Tensor:
        with torch.no_grad(), self.autocast():
            return self.call(x)

    def train(self, x: Tensor) -> None:
        """Forward and backward, the gradient of the input included, as inside a network."""
        x = x.detach().requires_grad_()
        with self.autocast():
            y = self.call(x)
        y.backward(self.cotangent.to(y.dtype))

    def check(self, run: Callable[[Tensor], object]) -> None:
        """A compiled module must still answer as itself."""
        if self.call is self.module or run == self.train:
            return
        with torch.no_grad(), self.autocast():
            found, expected = self.call(self.inputs[0]).double(), self.module(self.inputs[0]).double()
        error = float((found - expected).norm() / expected.norm())
        if not error <= TOLERANCE[self.plan.dtype]:
            raise GateError(f"differs compiled by {error:.2g} relative")

    def peak(self, mode: str) -> float:
        """With one input resident, as in the paper."""
        run = getattr(self, mode)
        self.prepare(mode)
        run(self.inputs[0])  # first call: handles, workspaces, compilation
        self.check(run)
        self.prepare(mode)
        resident = [*self.module.parameters(), *self.module.buffers(), self.inputs[0]]
        return footprint.peak_mib(lambda: run(self.inputs[0]), resident, self.plan.device)

    def time(self, mode: str) -> Timing:
        """Median over turns of the inputs; fewer of them where one call takes long."""
        turns = itertools.cycle(self.inputs)

        def once() -> float:
            self.prepare(mode)
            return clock(getattr(self, mode), (next(turns),), self.plan.device)

        first = statistics.median(once() for _ in range(3))
        repeats = max(1, min(self.plan.repeats, int(self.plan.seconds * 1e3 / max(first, 1e-3))))
        return Timing.of([once() for _ in range(repeats)])
