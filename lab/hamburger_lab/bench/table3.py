"""`ham bench table3`: time and memory of every context module, as in the paper's Table 3."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hamburger.environment import describe_environment
from hamburger.errors import OptionError, check_choice, check_count, check_positive, check_seed
from hamburger_lab import paper
from hamburger_lab.bench import autotune, common
from hamburger_lab.bench.autotune import ModeMeasurement
from hamburger_lab.bench.module_under_test import REFUSALS, ModuleUnderTest, refusal_reason
from hamburger_lab.bench.table3_names import COMPILED, module_names
from hamburger_lab.bench.timed_module import DTYPES, FORMATS, BenchSetting
from hamburger_lab.bench.timing import freeze_garbage, unfreeze_garbage_afterwards

BEST = "best"  # the faster memory format, chosen for each module and mode


@dataclass(frozen=True)
class Table3Plan:
    modules: tuple[str, ...]
    sizes: tuple[int, ...] = (paper.SIZE,)
    channels: int = paper.CHANNELS
    batch: int = 1
    device: str = "cpu"
    dtypes: tuple[str, ...] = ("float32",)
    memory_format: str | None = None  # None: best on cuda, contiguous on a CPU
    repeats: int = 20  # samples of one timing, each a call or a block of short calls
    seconds: float = 2.0  # time budget of one row: both modes and all candidates
    max_macs: float = math.inf  # modules that need more multiply-adds are counted but not run
    seed: int = 0

    def __post_init__(self) -> None:
        for option in ("modules", "sizes", "dtypes"):
            _check_list(option, getattr(self, option))
        for module in self.modules:
            check_choice("bench table3", "module", module.removesuffix(COMPILED), module_names())
        for n in self.sizes:
            check_count("bench table3", "a size", n, least=16)
        for dtype in self.dtypes:
            check_choice("bench table3", "dtype", dtype, DTYPES)
        for option in ("channels", "batch", "repeats"):
            check_count("bench table3", option, getattr(self, option), least=1)
        check_seed("bench table3", self.seed)
        check_positive("bench table3", "seconds", self.seconds, zero=True)
        check_choice("bench table3", "device", self.device, ("cpu", "cuda"))
        if self.memory_format is not None:
            check_choice("bench table3", "memory format", self.memory_format, (*FORMATS, BEST))
        if not self.max_macs > 0:
            raise OptionError(f"bench table3: max_macs must be a number above 0, got {self.max_macs!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise OptionError("bench table3: no CUDA device found; use --device cpu")
        if self.device == "cpu" and "tf32" in self.dtypes:
            raise OptionError("bench table3: tf32 is a mode of CUDA devices; use --dtype float32 or bfloat16")

    def formats(self, module: str) -> tuple[str, ...]:
        """Return the memory formats to try."""
        requested = self.memory_format or (BEST if self.device == "cuda" else "contiguous")
        if requested != BEST:
            return (requested,)
        # the compiler chooses the layout of convolutions itself, and compiling twice is slow
        return ("contiguous",) if module.endswith(COMPILED) else tuple(FORMATS)

    def shape(self, n: int) -> tuple[int, ...]:
        return (self.batch, self.channels, *image_shape(n))

    @property
    def rows(self) -> int:
        return len(self.modules) * len(self.sizes) * len(self.dtypes)


def _check_list(option: str, values: Sequence[object]) -> None:
    if not values:
        raise OptionError(f"bench table3: give at least one value of {option}; separate several by commas")
    repeated = [value for value in dict.fromkeys(values) if values.count(value) > 1]
    if repeated:
        raise OptionError(f"bench table3: {option} has {repeated[0]!r} more than once; give each value once")


@dataclass(frozen=True)
class Table3Row:
    """One line of the result file. Times are medians in ms, memory is the peak in MiB; None if it did not run."""

    module: str
    n: int
    params: int | None  # None if the module could not be built
    macs: int | None
    infer_ms: float | None
    infer_ms_iqr: float | None
    train_ms: float | None
    train_ms_iqr: float | None
    infer_mb: float | None
    train_mb: float | None
    note: str
    memory_format: str | None
    compiled: bool
    backend: str  # backend of our hams: the value of HAM_BACKEND
    dtype: str
    channels: int
    batch: int
    infer_repeats: int | None  # samples behind the median
    train_repeats: int | None
    infer_block: int | None  # calls in one sample
    train_block: int | None
    max_macs: float | None  # None: no limit
    row_s: float  # wall time of this row, including the correctness check in the first row of a dtype
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


def measure(plan: Table3Plan, progress: Callable[[str], object] = lambda _: None) -> Iterator[Table3Row]:
    """Yield one row per dtype, size and module; small sizes first, so that an interrupted run loses little."""
    environment = describe_environment(plan.device)
    modules = [ModuleUnderTest(name, plan.channels, plan.device, plan.seed) for name in plan.modules]
    for module in modules:
        progress(f"counting {module.name}")
        for n in plan.sizes:
            module.counts(plan.shape(n))
    with unfreeze_garbage_afterwards():
        for dtype in plan.dtypes:
            setting = BenchSetting(plan.device, dtype, plan.seed, plan.repeats, plan.seconds)
            with setting.precision():
                for n in sorted(plan.sizes):
                    for module in modules:
                        progress(f"{module.name} n={n} {dtype}")
                        yield _row(plan, setting, module, n, environment)


def image_shape(n: int) -> tuple[int, int]:
    """Return the h, w with h * w = n that are closest to a square."""
    h = max(h for h in range(1, int(n**0.5) + 1) if n % h == 0)
    return h, n // h


def _row(
    plan: Table3Plan, setting: BenchSetting, module: ModuleUnderTest, n: int, environment: dict[str, object]
) -> Table3Row:
    began = time.perf_counter()
    counts = module.counts(plan.shape(n))
    measurements, notes = _measure_modes(plan, setting, module, n)
    printed = module.name in paper.TABLE3 and (n, plan.channels, plan.batch) == (paper.SIZE, paper.CHANNELS, 1)
    if printed and counts.params is not None and counts.macs is not None:
        notes = paper.notes(module.name, counts.params, counts.macs) + notes
    return Table3Row(
        module=module.name,
        n=n,
        params=counts.params,
        macs=counts.macs,
        **_mode_fields(measurements),  # type: ignore[arg-type]
        note="; ".join([*filter(None, [_join_choices([one.build for one in measurements])]), *notes]),
        memory_format=_join_choices([one.memory_format for one in measurements]) or None,
        compiled=module.compiled,
        backend=common.requested_backend(),
        dtype=setting.dtype,
        channels=plan.channels,
        batch=plan.batch,
        max_macs=None if math.isinf(plan.max_macs) else plan.max_macs,
        seed=plan.seed,
        row_s=round(time.perf_counter() - began, 3),
        **environment,  # type: ignore[arg-type]
    )


def _measure_modes(
    plan: Table3Plan, setting: BenchSetting, module: ModuleUnderTest, n: int
) -> tuple[list[ModeMeasurement], list[str]]:
    """Return the measurements of the modes that ran, and notes on why others did not."""
    counts, formats = module.counts(plan.shape(n)), plan.formats(module.name)
    refusal = module.refusal(setting, formats) or counts.refused
    if refusal:
        return [], [refusal]
    if counts.macs is not None and counts.macs > plan.max_macs:
        return [], [f"not run: more than {plan.max_macs:.0e} multiply-adds"]
    measurements: list[ModeMeasurement] = []
    notes = []
    freeze_garbage()
    try:
        for one in autotune.measure_fastest(
            setting, module.builds, formats, plan.shape(n), compiled=module.compiled
        ):  # one by one: inference is kept if training does not fit
            measurements.append(one)
    except REFUSALS as error:
        notes.append(refusal_reason(error))
    if plan.device == "cuda":
        torch.cuda.empty_cache()  # once per row: reallocating takes milliseconds
    return measurements, notes


def _mode_fields(measurements: Sequence[ModeMeasurement]) -> dict[str, float | None]:
    """Return the row fields of both modes, None for a mode that was not measured."""
    fields: dict[str, float | None] = {
        f"{mode}_{field}": None for mode in autotune.MODES for field in ("ms", "ms_iqr", "mb", "repeats", "block")
    }
    for one in measurements:
        fields[f"{one.mode}_ms"] = round(one.timing.ms, 4)
        fields[f"{one.mode}_ms_iqr"] = None if one.timing.ms_iqr is None else round(one.timing.ms_iqr, 4)
        fields[f"{one.mode}_mb"] = round(one.mb, 2)
        fields[f"{one.mode}_repeats"] = one.repeats
        fields[f"{one.mode}_block"] = one.block
    return fields


def _join_choices(chosen: Sequence[str]) -> str:
    """Return the choice, once if both modes agree, else for each mode."""
    if len(set(chosen)) < 2:
        return "".join(set(chosen))
    return "inference: {}; training: {}".format(*chosen)
