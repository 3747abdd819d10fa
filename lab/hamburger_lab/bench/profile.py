"""`ham bench profile`: GPU time of a context module by kernel."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hamburger.environment import describe_environment
from hamburger.errors import OptionError, check_choice, check_count, check_seed
from hamburger_lab.bench import common
from hamburger_lab.bench.autotune import MODES
from hamburger_lab.bench.common import WrongResultError
from hamburger_lab.bench.module_under_test import ModuleUnderTest
from hamburger_lab.bench.table3 import image_shape
from hamburger_lab.bench.table3_names import module_names
from hamburger_lab.bench.timed_module import DTYPES, BenchSetting, TimedModule

if TYPE_CHECKING:
    from rich.table import Table

FORMAT = "contiguous"
WARMUP = 8  # calls before profiling: kernels are compiled, launches cached and CUDA graphs recorded


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
        for option, requested, known in (
            ("module", self.modules, tuple(module_names())),
            ("mode", self.modes, MODES),
            ("dtype", (self.dtype,), DTYPES),
        ):
            if not requested:
                raise OptionError(f"bench profile: give at least one {option}; known: {', '.join(known)}")
            for name in requested:
                check_choice("bench profile", option, name, known)
        if not self.sizes:
            raise OptionError("bench profile: give at least one size; separate several by commas")
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
    """One kernel of a call: launches and microseconds, means over the calls.

    `ms` is the time of the whole call, measured without the profiler; it includes gaps between kernels.
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
    """Yield one row per module, size, mode and kernel."""
    if not torch.cuda.is_available():
        raise OptionError("bench profile: needs a CUDA device, and none was found")
    environment = describe_environment("cuda")
    setting = BenchSetting("cuda", plan.dtype, plan.seed)
    with setting.precision():
        modules = [ModuleUnderTest(name, plan.channels, "cuda", plan.seed) for name in plan.modules]
        for module, n in itertools.product(modules, plan.sizes):
            name, refusal = module.name, module.refusal(setting, (FORMAT,))
            if refusal:  # wrong results are not timed
                raise WrongResultError(f"bench profile: {name} in {plan.dtype}: {refusal}")
            build = next(iter(module.builds.values()))
            timed = TimedModule(setting, build, (plan.batch, plan.channels, *image_shape(n)), memory_format=FORMAT)
            for mode in plan.modes:
                progress(f"{name} {mode} n={n:,}")
                for _ in range(WARMUP):
                    timed.once(mode)
                ms = sorted(timed.once(mode, plan.calls) for _ in range(5))[2]
                kernels = profile_kernels(partial(timed.once, mode, plan.calls))
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

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    return sum_by_kernel(
        (event.name, event.device_time) for event in profiler.events() if event.device_type.name == "CUDA"
    )


def sum_by_kernel(events: Iterator[tuple[str, float]]) -> dict[str, tuple[int, float]]:
    """Return short kernel name -> (launches, microseconds), the longest first."""
    launches: Counter[str] = Counter()
    total_us: Counter[str] = Counter()
    for name, us in events:
        launches[short_kernel_name(name)] += 1
        total_us[short_kernel_name(name)] += us  # type: ignore[assignment]
    return {name: (launches[name], float(us)) for name, us in total_us.most_common()}


def short_kernel_name(kernel: str) -> str:
    """Return a kernel's name without types and arguments: `void at::native::foo<float>(int)` -> `foo`.

    For generic names such as `cutlass::Kernel2<name>`, return the first template argument.
    """
    kernel = kernel.replace("(anonymous namespace)::", "")
    if not (kernel.endswith(")") and "(" in kernel) or kernel.startswith(("Memcpy", "Memset")):
        return kernel.partition(" (")[0]  # not a C++ function
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
    depth, letters = 0, []
    for letter in text:
        depth += letter == brackets[0]
        if not depth:
            letters.append(letter)
        depth -= letter == brackets[1] and depth > 0
    return "".join(letters)


def profile_table(rows: Sequence[ProfileRow]) -> Table:
    """Return a table with one line per kernel, the longest first, and one column per mode and size."""
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
    """Yield module, kernel and, per (mode, n), microseconds (launches); then their sum and the measured time."""
    for module in dict.fromkeys(row["module"] for row in rows):
        module_rows = [row for row in rows if row["module"] == module]
        longest = {
            name: max(row["us"] for row in module_rows if row["kernel"] == name)
            for name in {r["kernel"] for r in module_rows}
        }
        by_key = {(row["kernel"], row["mode"], row["n"]): row for row in module_rows}
        for kernel in sorted(longest, key=lambda name: (-longest[name], name)):
            cells = [by_key.get((kernel, *column)) for column in columns]
            yield [module, kernel, *("" if c is None else f"{c['us']:.1f} ({c['launches']:g})" for c in cells)]
        sums, wall_times = [], []
        for mode, n in columns:
            column_rows = [row for row in module_rows if (row["mode"], row["n"]) == (mode, n)]
            sums.append(
                f"{sum(row['us'] for row in column_rows):.1f} ({sum(row['launches'] for row in column_rows):g})"
            )
            wall_times.append(f"{1000 * column_rows[0]['ms']:.1f}" if column_rows else "")
        yield [module, "all kernels", *sums]
        yield [module, "wall time", *wall_times]
