"""`ham bench profile`: which kernels the time of a context module goes into, on a GPU."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hamburger.environment import Environment
from hamburger.errors import OptionError, check_choice, check_count, check_seed
from hamburger_lab.bench import common
from hamburger_lab.bench.autotune import MODES
from hamburger_lab.bench.common import GateError
from hamburger_lab.bench.module_under_test import ModuleUnderTest
from hamburger_lab.bench.table3 import image_shape
from hamburger_lab.bench.table3_names import module_names
from hamburger_lab.bench.timed_module import DTYPES, BenchSetting, TimedModule

if TYPE_CHECKING:
    from rich.table import Table

FORMAT = "contiguous"
WARM = 8  # calls before the profiler looks: kernels are compiled, calls taped and recorded


@dataclass(frozen=True)
class ProfilePlan:
    modules: tuple[str, ...] = ("nmf",)
    sizes: tuple[int, ...] = (16384,)
    channels: int = 512
    batch: int = 1
    dtype: str = "bfloat16"
    modes: tuple[str, ...] = MODES
    calls: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for option, given, known in (
            ("module", self.modules, tuple(module_names())),
            ("mode", self.modes, MODES),
            ("dtype", (self.dtype,), DTYPES),
        ):
            if not given:
                raise OptionError(f"bench profile: give at least one {option}; known: {', '.join(known)}")
            for name in given:
                check_choice("bench profile", option, name, known)
        if not self.sizes:
            raise OptionError("bench profile: give at least one of the sizes; separate several by commas")
        for n in self.sizes:
            check_count("bench profile", "a size", n, least=16)
        for option in ("channels", "batch", "calls"):
            check_count("bench profile", option, getattr(self, option), least=1)
        check_seed("bench profile", self.seed)

    @property
    def stages(self) -> int:
        return len(self.modules) * len(self.sizes) * len(self.modes)


@dataclass(frozen=True)
class ProfileRow:
    """One kernel of a call: how often it is launched and how long it runs, on average over the calls.

    `ms` is a whole call by the clock, without the profiler: kernels need not follow each other without a gap.
    """

    module: str
    mode: str
    n: int
    kernel: str
    launches: float
    us: float
    ms: float
    calls: int
    dtype: str
    channels: int
    batch: int
    backend: str
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


def measure(plan: ProfilePlan, progress: Callable[[str], object] = lambda _: None) -> Iterator[ProfileRow]:
    if not torch.cuda.is_available():
        raise OptionError("bench profile: kernels are those of a CUDA device, and there is none here")
    environment = asdict(Environment.here("cuda"))
    setting = BenchSetting("cuda", plan.dtype, plan.seed)
    with setting.precision():
        subjects = [ModuleUnderTest(name, plan.channels, "cuda", plan.seed) for name in plan.modules]
        for subject, n in itertools.product(subjects, plan.sizes):
            name, refused = subject.name, subject.refusal(setting, (FORMAT,))
            if refused:  # no time is reported for a wrong answer
                raise GateError(f"bench profile: {name} in {plan.dtype}: {refused}")
            build = next(iter(subject.ways.values()))
            case = TimedModule(setting, build, (plan.batch, plan.channels, *image_shape(n)), memory_format=FORMAT)
            for mode in plan.modes:
                progress(f"{name} {mode} n={n:,}")
                for _ in range(WARM):
                    case.once(mode)
                ms = sorted(case.once(mode, plan.calls) for _ in range(5))[2]
                kernels = profile_kernels(partial(case.once, mode, plan.calls))
                for kernel, (launches, us) in kernels.items():
                    yield ProfileRow(
                        module=name,
                        mode=mode,
                        n=n,
                        kernel=kernel,
                        launches=round(launches / plan.calls, 3),
                        us=round(us / plan.calls, 3),
                        ms=round(ms, 4),
                        calls=plan.calls,
                        dtype=plan.dtype,
                        channels=plan.channels,
                        batch=plan.batch,
                        backend=common.requested_backend(),
                        seed=plan.seed,
                        **environment,
                    )


def profile_kernels(call: Callable[[], object]) -> dict[str, tuple[int, float]]:
    """Return launches and microseconds of each GPU kernel during a call, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as watched:
        call()
        torch.cuda.synchronize()
    return sum_by_kernel(
        (event.name, event.device_time) for event in watched.events() if event.device_type.name == "CUDA"
    )


def sum_by_kernel(events: Iterator[tuple[str, float]]) -> dict[str, tuple[int, float]]:
    launches: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for name, us in events:
        launches[short_kernel_name(name)] += 1
        spent[short_kernel_name(name)] += us  # type: ignore[assignment]
    return {name: (launches[name], float(us)) for name, us in spent.most_common()}


def short_kernel_name(kernel: str) -> str:
    """A kernel's name without types and arguments: `void at::native::foo<float>(int)` -> `foo`.

    What many kernels are called (`cutlass::Kernel2<name>`) says nothing: there the first of its types does.
    """
    kernel = kernel.replace("(anonymous namespace)::", "")
    if not (kernel.endswith(")") and "(" in kernel) or kernel.startswith(("Memcpy", "Memset")):
        return kernel.partition(" (")[0]  # no function of C++
    before = _strip_brackets(kernel, "()").strip()
    name = _strip_brackets(before, "<>").split()[-1]
    plain = name.rsplit("::", 1)[-1]
    if plain.lower() not in ("kernel", "kernel2"):
        return plain
    types = before[before.rindex(plain) + len(plain) :]
    first = re.match(r"<([\w:]+)[,>(<]", types)
    return first[1].rsplit("::", 1)[-1] if first and first[1] not in ("int", "float") else name


def _strip_brackets(text: str, brackets: str) -> str:
    """Return the text without anything in brackets, nested ones included."""
    depth, kept = 0, []
    for letter in text:
        depth += letter == brackets[0]
        if not depth:
            kept.append(letter)
        depth -= letter == brackets[1] and depth > 0
    return "".join(kept)


def profile_table(rows: Sequence[ProfileRow]) -> Table:
    """A line a kernel, in the order of their time in the largest problem; a column a size and mode."""
    from rich.table import Table

    table = Table(title="microseconds of a call on the GPU (launches)")
    table.add_column("module")
    table.add_column("kernel")
    columns = list(dict.fromkeys((row.mode, row.n) for row in rows))
    for mode, n in columns:
        table.add_column(f"{mode} n={n:,}", justify="right")
    for line in kernel_lines([asdict(row) for row in rows], columns):
        table.add_row(*line)
    first = rows[0]
    table.caption = f"{first.hardware}, torch {first.torch}, {first.dtype}, b = {first.batch}, c = {first.channels}"
    return table


def kernel_lines(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    """Module, kernel, and for each (mode, n) the time and in brackets the launches; then their sum, and the clock's."""
    for module in dict.fromkeys(row["module"] for row in rows):
        module_rows = [row for row in rows if row["module"] == module]
        most = {
            name: max(row["us"] for row in module_rows if row["kernel"] == name)
            for name in {r["kernel"] for r in module_rows}
        }
        by_place = {(row["kernel"], row["mode"], row["n"]): row for row in module_rows}
        for kernel in sorted(most, key=lambda name: (-most[name], name)):
            cells = [by_place.get((kernel, *column)) for column in columns]
            yield [module, kernel, *("" if c is None else f"{c['us']:.1f} ({c['launches']:g})" for c in cells)]
        sums, clocks = [], []
        for mode, n in columns:
            some = [row for row in module_rows if (row["mode"], row["n"]) == (mode, n)]
            sums.append(f"{sum(row['us'] for row in some):.1f} ({sum(row['launches'] for row in some):g})")
            clocks.append(f"{1000 * some[0]['ms']:.1f}" if some else "")
        yield [module, "all kernels", *sums]
        yield [module, "by the clock", *clocks]
