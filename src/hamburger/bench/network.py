"""`ham bench network`: a training step of a whole segmentation network with each context, one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hamburger.bench import footprint
from hamburger.bench.timing import Timing, clock
from hamburger.environment import Environment
from hamburger.errors import OptionError, check_choice, check_count, check_seed

if TYPE_CHECKING:
    from rich.table import Table

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Plan:
    """`variants`: options of `create_model` by the name of the row."""

    variants: dict[str, dict[str, Any]]
    backbone: str = "resnet50"
    output_stride: int = 16
    num_classes: int = 21
    crop: int = 513
    batch: int = 16
    device: str = "cpu"
    dtype: str = "float32"
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.variants:
            raise OptionError("bench network: give at least one context")
        for option in ("num_classes", "crop", "batch", "repeats"):
            check_count("bench network", option, getattr(self, option), least=1)
        check_seed("bench network", self.seed)
        check_choice("bench network", "device", self.device, ("cpu", "cuda"))
        check_choice("bench network", "dtype", self.dtype, DTYPES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise OptionError("bench network: there is no CUDA device here; take --device cpu")


@dataclass(frozen=True)
class Row:
    """One line of the result file: median of a whole training step (forward, backward, SGD), and its peak memory."""

    context: str
    backbone: str
    output_stride: int
    crop: int
    batch: int
    dtype: str
    params: int
    train_ms: float | None
    train_ms_iqr: float | None
    images_per_s: float | None
    peak_mb: float | None
    note: str
    repeats: int
    seed: int
    device: str
    hardware: str
    torch: str
    threads: int
    commit: str | None
    date: str


def measure(plan: Plan, progress: Callable[[str], object] = lambda _: None) -> Iterator[Row]:
    environment = asdict(Environment.here(plan.device))
    for context, options in plan.variants.items():
        progress(context)
        yield _row(plan, context, options, environment)
        if plan.device == "cuda":
            torch.cuda.empty_cache()


def _row(plan: Plan, context: str, options: dict[str, Any], environment: dict[str, Any]) -> Row:
    from hamburger.models.create import create_model

    torch.manual_seed(plan.seed)
    net = create_model(
        "hamnet",
        backbone=plan.backbone,
        output_stride=plan.output_stride,
        num_classes=plan.num_classes,
        **options,
    )
    note = ""
    found: dict[str, float] = {}
    try:
        step = TrainingStep(plan, net)
        for _ in range(3):  # handles, workspaces, algorithms
            loss = step()
        if not torch.isfinite(loss):
            note = f"refused: the loss is {loss.item()}"
        else:
            resident = [*net.parameters(), *net.buffers(), step.images, step.labels, *step.momenta()]
            found["peak_mb"] = round(footprint.peak_mib(step, resident, plan.device), 1)
            timing = Timing.of([clock(step, (), plan.device) for _ in range(plan.repeats)])
            found |= {"train_ms": round(timing.ms, 3), "train_ms_iqr": round(timing.ms_iqr, 3)}
            found["images_per_s"] = round(plan.batch / timing.ms * 1e3, 1)
    except torch.OutOfMemoryError:
        note = "out of memory"
    return Row(
        context=context,
        backbone=plan.backbone,
        output_stride=plan.output_stride,
        crop=plan.crop,
        batch=plan.batch,
        dtype=plan.dtype,
        params=sum(p.numel() for p in net.parameters()),
        **{field: found.get(field) for field in ("train_ms", "train_ms_iqr", "images_per_s", "peak_mb")},  # type: ignore[arg-type]
        note=note,
        repeats=plan.repeats,
        seed=plan.seed,
        **environment,
    )


class TrainingStep:
    """Forward, backward and an SGD step on random images, as training runs them: channels last, autocast."""

    def __init__(self, plan: Plan, net: nn.Module) -> None:
        generator = torch.Generator(plan.device).manual_seed(plan.seed)
        shape = (plan.batch, 3, plan.crop, plan.crop)
        images = torch.randn(shape, generator=generator, device=plan.device)
        self.images = images.contiguous(memory_format=torch.channels_last)
        size = (plan.batch, plan.crop, plan.crop)
        self.labels = torch.randint(plan.num_classes, size, generator=generator, device=plan.device)
        self.net = net.train().to(plan.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        enabled = plan.dtype == "bfloat16"
        self.autocast: Callable[[], contextlib.AbstractContextManager[object]] = lambda: torch.autocast(
            plan.device, torch.bfloat16, enabled=enabled
        )

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            terms = self.net(self.images, self.labels)
        loss: Tensor = torch.stack(list(terms.values())).sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def momenta(self) -> list[Tensor]:
        return [state["momentum_buffer"] for state in self.optimizer.state.values()]


def table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    first = rows[0]
    made = Table(
        title=f"training step of {first.backbone} at stride {first.output_stride}, {first.batch} x {first.crop} x "
        f"{first.crop}, {first.dtype}",
        caption=f"{first.hardware}, torch {first.torch}; medians of {first.repeats} steps ± IQR, one network at a time",
    )
    made.add_column("context")
    for heading in ("params M", "ms", "images/s", "peak MiB"):
        made.add_column(heading, justify="right")
    for row in rows:
        if row.train_ms is None:
            made.add_row(row.context, f"{row.params / 2**20:.2f}", row.note, "", "")
            continue
        time = f"{row.train_ms:.1f} ±{row.train_ms_iqr:.1f}"
        made.add_row(row.context, f"{row.params / 2**20:.2f}", time, f"{row.images_per_s:.0f}", f"{row.peak_mb:,.0f}")
    return made
