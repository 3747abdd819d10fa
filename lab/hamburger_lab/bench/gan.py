"""`ham bench gan`: time the whole training step and the context module of each GAN.

The paper (section 3.5) reports that HamGAN's module takes 3.6 times less time than YLG's, and a whole step 15 % less.
It derives the first number from steps with and without the module. Both are measured here, and the modules alone.
"""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.classification.data.batches import ImageBatch
from hamburger.environment import describe_environment
from hamburger.errors import (
    OptionError,
    UnknownNameError,
    check_choice,
    check_count,
    check_flag,
    check_seed,
    did_you_mean,
)
from hamburger.generation.gan_steps import (
    EAGER_STEPS,
    GraphedStep,
    compute_discriminator_terms,
    create_adam,
    generator_hinge,
)
from hamburger.generation.model import Gan, create_gan
from hamburger.generation.recipe import GanOptim
from hamburger_lab.bench import common, footprint
from hamburger_lab.bench.network import DTYPES, describe_tf32, training_flags
from hamburger_lab.bench.timing import Timing, time_call

# row name -> context and its options; all contexts are built into the same networks
CONTENDERS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {}),
    "sagan": ("sagan", {}),
    "ylg": ("ylg", {}),  # as published: computes all scores and masks most of them
    "ylg-fused": ("ylg", {"scores": "fused"}),
    "hamgan": ("hamgan", {}),
    "efficient": ("efficient", {}),
}
NONE, REFERENCE = "none", "ylg"
WARMUP = 3
STEP, GENERATOR, DISCRIMINATOR = "step", "generator", "discriminator"  # the timed calls of one context


@dataclass(frozen=True)
class GanStepPlan:
    contexts: tuple[str, ...] = tuple(CONTENDERS)
    resolution: int = 128
    width: int = 64
    num_classes: int = 1000
    latent: int = 128
    batch: int = 64
    device: str = "cpu"
    dtype: str = "float32"
    channels_last: bool = True
    graph: bool = False  # time the replay of a CUDA graph: GPU time without launch overhead
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        call = "bench gan"
        for name in self.contexts:
            if name not in CONTENDERS:
                raise UnknownNameError(f"{call}: no context '{name}'{did_you_mean(name, CONTENDERS)}")
        if not self.contexts or len(set(self.contexts)) != len(self.contexts):
            raise OptionError(f"{call}: give each context once, and at least one, got {list(self.contexts)}")
        for option in ("width", "num_classes", "latent", "repeats"):
            check_count(call, option, getattr(self, option), least=1)
        check_count(call, "batch", self.batch, least=2)
        check_seed(call, self.seed)
        check_choice(call, "device", self.device, ("cpu", "cuda"))
        check_choice(call, "dtype", self.dtype, DTYPES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise OptionError(f"{call}: no CUDA device found; use --device cpu")
        check_flag(call, "graph", self.graph)
        if self.graph and self.device != "cuda":
            raise OptionError(f"{call}: CUDA graphs need --device cuda (got '{self.device}'); leave --graph out")

    @property
    def stages(self) -> int:
        return len(self.contexts) + 1 + self.repeats


@dataclass(frozen=True)
class GanStepRow:
    """One line of the result file; times are medians in milliseconds.

    `added_ms`: median over rounds of the step's time minus that of the step without a context.
    `generator_ms`, `discriminator_ms`: forward and backward of the module alone. The discriminator's module sees twice
    the batch, real and generated images. `step_of_ylg`, `added_of_ylg`, `module_of_ylg`: ratios to `ylg`.
    """

    context: str
    backend: str  # backend of our hams: the value of HAM_BACKEND
    resolution: int
    width: int
    batch: int
    dtype: str
    tf32: str
    channels_last: bool
    graph: bool  # replayed as a CUDA graph instead of launched kernel by kernel
    parameters: int
    step_ms: float | None
    step_ms_iqr: float | None
    added_ms: float | None
    generator_ms: float | None
    discriminator_ms: float | None
    step_of_ylg: float | None
    added_of_ylg: float | None
    module_of_ylg: float | None
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


class GanStep:
    """One training step on random images: an update of the discriminator, then one of the generator, both by Adam."""

    def __init__(self, plan: GanStepPlan, networks: Gan) -> None:
        self.plan = plan
        self.generator, self.discriminator = (self._to_layout(net.train().to(plan.device)) for net in networks)
        rates = ((self.generator, 1e-4), (self.discriminator, 4e-4))
        self.optimizers = [create_adam(net, GanOptim(), rate, capturable=plan.graph) for net, rate in rates]
        random_numbers = torch.Generator(plan.device).manual_seed(plan.seed)
        shape = (plan.batch, 3, plan.resolution, plan.resolution)
        images = 2 * torch.rand(shape, generator=random_numbers, device=plan.device) - 1
        labels = torch.randint(plan.num_classes, (plan.batch,), generator=random_numbers, device=plan.device)
        if plan.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        self.real = ImageBatch(images, labels)

    def _to_layout(self, net: nn.Module) -> nn.Module:
        return net.to(memory_format=torch.channels_last) if self.plan.channels_last else net

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.plan.device, torch.bfloat16, enabled=self.plan.dtype == "bfloat16")

    def __call__(self) -> Tensor:
        generator_optimizer, discriminator_optimizer = self.optimizers
        z, y = self._draw()
        with self.autocast():
            with torch.no_grad():
                generated = self.generator(z, y)
            terms = compute_discriminator_terms(self.discriminator, self.real, generated, y)
        discriminator_loss = terms["discriminator"]
        discriminator_loss.backward()
        discriminator_optimizer.step()
        discriminator_optimizer.zero_grad(set_to_none=True)
        self.discriminator.requires_grad_(False)
        z, y = self._draw()
        with self.autocast():
            generator_loss = generator_hinge(self.discriminator(self.generator(z, y), y))
        generator_loss.backward()
        self.discriminator.requires_grad_(True)
        generator_optimizer.step()
        generator_optimizer.zero_grad(set_to_none=True)
        return discriminator_loss.detach() + generator_loss.detach()

    def _draw(self) -> tuple[Tensor, Tensor]:
        b, device = self.plan.batch, self.plan.device
        z = torch.randn(b, self.plan.latent, device=device)
        return z, torch.randint(self.plan.num_classes, (b,), device=device)

    def resident(self) -> list[Tensor]:
        """Return all tensors that stay in memory between steps."""
        states = [
            value for optimizer in self.optimizers for state in optimizer.state.values() for value in state.values()
        ]
        nets = (self.generator, self.discriminator)
        weights = [tensor for net in nets for tensor in (*net.parameters(), *net.buffers())]
        return [*weights, *(value for value in states if isinstance(value, Tensor)), *self.real]


class ContextModule:
    """Forward and backward of the context alone, in training mode, on a map of the size it has in the network."""

    def __init__(self, step: GanStep, net: Any, b: int, *, classes: bool) -> None:
        plan = step.plan
        self.module, self.autocast = net.context, step.autocast
        channels, size = context_shape(net)
        random_numbers = torch.Generator(plan.device).manual_seed(plan.seed)
        x = torch.randn(b, channels, size, size, generator=random_numbers, device=plan.device)
        x = x.contiguous(memory_format=torch.channels_last) if plan.channels_last else x
        self.x = x.to(torch.bfloat16 if plan.dtype == "bfloat16" else torch.float32).requires_grad_()
        self.y = torch.randint(plan.num_classes, (b,), device=plan.device) if classes else None
        self.cotangent = torch.randn_like(self.x)

    def __call__(self) -> Tensor:
        with self.autocast():
            out: Tensor = self.module(self.x, self.y)
        out.backward(self.cotangent)
        self.x.grad = None
        for parameter in self.module.parameters():
            parameter.grad = None
        return out.detach()


def context_shape(net: Any) -> tuple[int, int]:
    """Return the channels and the height of the map that the context gets."""
    shapes: list[tuple[int, int]] = []
    hook = net.context.register_forward_pre_hook(lambda _, args: shapes.append((args[0].shape[1], args[0].shape[2])))
    device = next(net.parameters()).device
    training = net.training
    try:
        with torch.no_grad():
            y = torch.zeros(1, dtype=torch.long, device=device)
            side = net.resolution
            first = torch.zeros(1, net.latent, device=device) if hasattr(net, "latent") else None
            net.eval()(torch.zeros(1, 3, side, side, device=device) if first is None else first, y)
    finally:
        hook.remove()
        net.train(training)
    return shapes[0]


def record_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that replays the same work as a CUDA graph, as recipes with `graph=true` train."""

    def step(_: object) -> dict[str, Tensor]:
        call()
        return {}

    graphed = GraphedStep(step)
    for _ in range(EAGER_STEPS + 1):
        graphed(())
    return lambda: graphed(())


def measure(plan: GanStepPlan, progress: Callable[[str], object] = lambda _: None) -> list[GanStepRow]:
    """Return one row per context. Every round times each GAN and its modules once, in shuffled order."""
    with training_flags(plan.device):
        race = GanRace(plan)
        for context in plan.contexts:
            progress(context)
            race.add(context)
        return race.rows(race.run(progress))


class GanRace:
    """Times the steps and modules of several GANs that stay on the device together."""

    def __init__(self, plan: GanStepPlan) -> None:
        self.plan = plan
        self.calls: dict[tuple[str, str], Callable[[], Any]] = {}
        self.parameters: dict[str, int] = {}
        self.peaks: dict[str, float] = {}
        self.notes: dict[str, str] = {}

    def add(self, context: str) -> None:
        """Build a GAN, warm it up, check its loss and measure its peak memory."""
        plan = self.plan
        torch.manual_seed(plan.seed)
        name, options = CONTENDERS[context]
        networks = create_gan(
            "hamgan",
            resolution=plan.resolution,
            width=plan.width,
            num_classes=plan.num_classes,
            latent=plan.latent,
            context=name,
            context_options=options,
        )
        for net in networks:
            if net.context is not None:
                nn.init.constant_(net.context.gate, 0.1)  # an open gate, as after some training
        self.parameters[context] = sum(p.numel() for net in networks for p in net.parameters())
        try:
            step = GanStep(plan, networks)
            loss = torch.tensor(0.0)
            for _ in range(WARMUP):
                loss = step()
            if not torch.isfinite(loss):
                self.notes[context] = f"refused: the loss is {loss.item()}"
                return
            self.peaks[context] = footprint.peak_mib(step, step.resident(), plan.device)
            calls: dict[str, Callable[[], Any]] = {STEP: step}
            if name is not None:
                calls[GENERATOR] = ContextModule(step, step.generator, plan.batch, classes=True)
                calls[DISCRIMINATOR] = ContextModule(step, step.discriminator, 2 * plan.batch, classes=False)
            for what, call in calls.items():
                call()
                self.calls[context, what] = record_graph(call) if plan.graph else call
        except torch.OutOfMemoryError:
            self.drop(context)

    def drop(self, context: str) -> None:
        """Remove a GAN that ran out of memory."""
        others = len({name for name, _ in self.calls} - {context})
        self.notes[context] = "out of memory" + (f" next to {others} other GANs; try it alone" if others else "")
        self.calls = {key: call for key, call in self.calls.items() if key[0] != context}
        torch.cuda.empty_cache()

    def run(self, progress: Callable[[str], object]) -> dict[tuple[str, str], list[float]]:
        """Return (context, call) -> milliseconds of every round but the first, which warms up."""
        shuffle = random.Random(self.plan.seed).shuffle
        samples: dict[tuple[str, str], list[float]] = {key: [] for key in self.calls}
        gc.disable()
        try:
            for turn in range(1 + self.plan.repeats):
                progress(f"round {turn} of {self.plan.repeats}")
                gc.collect()
                order = list(self.calls)
                shuffle(order)
                for key in order:
                    if key not in self.calls:
                        continue
                    try:
                        elapsed = time_call(self.calls[key], (), self.plan.device)
                    except torch.OutOfMemoryError:
                        self.drop(key[0])
                        continue
                    if turn:
                        samples[key].append(elapsed)
        finally:
            gc.enable()
        return {key: samples[key] for key in self.calls}

    def rows(self, samples: dict[tuple[str, str], list[float]]) -> list[GanStepRow]:
        plan, environment = self.plan, describe_environment(self.plan.device)
        added = {context: self._added(samples, context) for context in plan.contexts}
        module_ms = {context: self._module(samples, context) for context in plan.contexts}
        reference = samples.get((REFERENCE, STEP))
        rows = []
        for context in plan.contexts:
            steps = samples.get((context, STEP))
            timing = Timing.of(steps) if steps else None
            modules = [samples.get((context, call)) for call in (GENERATOR, DISCRIMINATOR)]
            rows.append(
                GanStepRow(
                    context=context,
                    backend=common.requested_backend(),
                    resolution=plan.resolution,
                    width=plan.width,
                    batch=plan.batch,
                    dtype=plan.dtype,
                    tf32=describe_tf32(plan.device),
                    channels_last=plan.channels_last,
                    graph=plan.graph,
                    parameters=self.parameters[context],
                    step_ms=_rounded(timing and timing.ms),
                    step_ms_iqr=_rounded(timing and timing.ms_iqr),
                    added_ms=_rounded(added[context]),
                    generator_ms=_rounded(modules[0] and statistics.median(modules[0])),
                    discriminator_ms=_rounded(modules[1] and statistics.median(modules[1])),
                    step_of_ylg=_rounded(_median_ratio(steps, reference)),
                    added_of_ylg=_rounded(_ratio(added[context], added.get(REFERENCE))),
                    module_of_ylg=_rounded(_ratio(module_ms[context], module_ms.get(REFERENCE))),
                    peak_mb=_rounded(self.peaks.get(context), 1),
                    note=self.notes.get(context, ""),
                    repeats=plan.repeats,
                    seed=plan.seed,
                    **environment,
                )
            )
        return rows

    def _added(self, samples: dict[tuple[str, str], list[float]], context: str) -> float | None:
        """Return what the context adds to a step: the median over rounds of the difference to the step without one."""
        steps, without = samples.get((context, STEP)), samples.get((NONE, STEP))
        if context == NONE or not steps or not without:
            return None
        return statistics.median(a - b for a, b in zip(steps, without, strict=True))

    def _module(self, samples: dict[tuple[str, str], list[float]], context: str) -> float | None:
        modules = [samples.get((context, call)) for call in (GENERATOR, DISCRIMINATOR)]
        return None if not all(modules) else sum(statistics.median(times) for times in modules if times)


def _median_ratio(times: list[float] | None, reference: list[float] | None) -> float | None:
    if not times or not reference:
        return None
    return statistics.median(a / b for a, b in zip(times, reference, strict=True))


def _ratio(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference or reference <= 0 else value / reference


def _rounded(value: Any, digits: int = 4) -> float | None:
    return None if value is None else round(float(value), digits)
