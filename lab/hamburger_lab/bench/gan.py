"""`ham bench gan`: the context module and the whole training step of each GAN, in rounds.

The paper's claim (section 3.5): HamGAN's module takes 3.6 times less than YLG's, and a whole step 15 % less. It comes
from steps with and without the module; both are measured here, and so are the modules alone.
"""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.classification.data.batches import ImageBatch
from hamburger.environment import Environment
from hamburger.errors import (
    OptionError,
    UnknownNameError,
    check_choice,
    check_count,
    check_flag,
    check_seed,
    did_you_mean,
)
from hamburger.generation.gan_steps import EAGER_STEPS as BEFORE_RECORDING
from hamburger.generation.gan_steps import GraphedStep, compute_discriminator_terms, create_adam, generator_hinge
from hamburger.generation.model import Gan, create_gan
from hamburger.generation.recipe import GanOptim
from hamburger_lab.bench import common, footprint
from hamburger_lab.bench.network import DTYPES, describe_tf32, training_flags
from hamburger_lab.bench.timing import Timing, time_call

# name of the row: context and its options, in one family of networks
CONTENDERS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {}),
    "sagan": ("sagan", {}),
    "ylg": ("ylg", {}),  # as published: all scores, most of them hidden
    "ylg-fused": ("ylg", {"scores": "fused"}),
    "ylg-sparse": ("ylg", {"scores": "sparse"}),
    "hamgan": ("hamgan", {}),
    "efficient": ("efficient", {}),
}
NONE, REFERENCE = "none", "ylg"
WARMUP = 3
STEP, GENERATOR, DISCRIMINATOR = "step", "generator", "discriminator"  # what is timed


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
    graph: bool = False  # record every call as a CUDA graph and time its replay: GPU time without launch overhead
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
            raise OptionError(f"{call}: there is no CUDA device here; take --device cpu")
        check_flag(call, "graph", self.graph)
        if self.graph and self.device != "cuda":
            raise OptionError(f"{call}: graph records what a GPU does, got device '{self.device}'; leave --graph out")

    @property
    def stages(self) -> int:
        return len(self.contexts) + 1 + self.repeats


@dataclass(frozen=True)
class GanStepRow:
    """Medians in milliseconds. `added_ms`: median over the rounds of a step's time over that without context.

    `generator_ms`, `discriminator_ms`: the module alone, forward and backward, on maps of the batch in the generator
    and of twice the batch (real and made) in the discriminator. `step_of_ylg`, `added_of_ylg`: over those of `ylg`.
    """

    context: str
    backend: str  # of our hams: what HAM_BACKEND said
    resolution: int
    width: int
    batch: int
    dtype: str
    tf32: str
    channels_last: bool
    graph: bool  # recorded once and replayed, or launched each time
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
    """One step of training on random images: a move of the discriminator, one of the generator, Adam for both."""

    def __init__(self, plan: GanStepPlan, networks: Gan) -> None:
        self.plan = plan
        self.generator, self.discriminator = (self._laid(net.train().to(plan.device)) for net in networks)
        rates = ((self.generator, 1e-4), (self.discriminator, 4e-4))
        self.optimizers = [create_adam(net, GanOptim(), rate, capturable=plan.graph) for net, rate in rates]
        random_numbers = torch.Generator(plan.device).manual_seed(plan.seed)
        shape = (plan.batch, 3, plan.resolution, plan.resolution)
        images = 2 * torch.rand(shape, generator=random_numbers, device=plan.device) - 1
        labels = torch.randint(plan.num_classes, (plan.batch,), generator=random_numbers, device=plan.device)
        if plan.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        self.real = ImageBatch(images, labels)

    def _laid(self, net: nn.Module) -> nn.Module:
        return net.to(memory_format=torch.channels_last) if self.plan.channels_last else net

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.plan.device, torch.bfloat16, enabled=self.plan.dtype == "bfloat16")

    def __call__(self) -> Tensor:
        of_maker, of_judge = self.optimizers
        z, y = self._draw()
        with self.autocast():
            with torch.no_grad():
                generated = self.generator(z, y)
            loss = compute_discriminator_terms(self.discriminator, self.real, generated, y)["discriminator"]
        loss.backward()
        of_judge.step()
        of_judge.zero_grad(set_to_none=True)
        self.discriminator.requires_grad_(False)
        z, y = self._draw()
        with self.autocast():
            answer = generator_hinge(self.discriminator(self.generator(z, y), y))
        answer.backward()
        self.discriminator.requires_grad_(True)
        of_maker.step()
        of_maker.zero_grad(set_to_none=True)
        return loss.detach() + answer.detach()

    def _draw(self) -> tuple[Tensor, Tensor]:
        b, device = self.plan.batch, self.plan.device
        z = torch.randn(b, self.plan.latent, device=device)
        return z, torch.randint(self.plan.num_classes, (b,), device=device)

    def resident(self) -> list[Tensor]:
        states = [
            value for optimizer in self.optimizers for state in optimizer.state.values() for value in state.values()
        ]
        nets = (self.generator, self.discriminator)
        held = [tensor for net in nets for tensor in (*net.parameters(), *net.buffers())]
        return [*held, *(value for value in states if isinstance(value, Tensor)), *self.real]


class ContextModule:
    """The context alone, on the map it sees, forward and backward in training mode; its gate open, as in training."""

    def __init__(self, game: GanStep, net: Any, b: int, *, classes: bool) -> None:
        plan = game.plan
        self.module, self.autocast = net.context, game.autocast
        channels, size = context_shape(net)
        random_numbers = torch.Generator(plan.device).manual_seed(plan.seed)
        x = torch.randn(b, channels, size, size, generator=random_numbers, device=plan.device)
        x = x.contiguous(memory_format=torch.channels_last) if plan.channels_last else x
        self.x = x.to(torch.bfloat16 if plan.dtype == "bfloat16" else torch.float32).requires_grad_()
        self.y = torch.randint(plan.num_classes, (b,), device=plan.device) if classes else None
        self.back = torch.randn_like(self.x)

    def __call__(self) -> Tensor:
        with self.autocast():
            out: Tensor = self.module(self.x, self.y)
        out.backward(self.back)
        self.x.grad = None
        for parameter in self.module.parameters():
            parameter.grad = None
        return out.detach()


def context_shape(net: Any) -> tuple[int, int]:
    """Return channels and side of the map that the context sees."""
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
    """The same work by replay, as a recipe with `graph` trains."""

    def step(_: object) -> dict[str, Tensor]:
        call()
        return {}

    replayed = GraphedStep(step)
    for _ in range(BEFORE_RECORDING + 1):
        replayed(())
    return lambda: replayed(())


def measure(plan: GanStepPlan, progress: Callable[[str], object] = lambda _: None) -> list[GanStepRow]:
    """A row per context. All games stay on the device; every round plays each, and its modules, in shuffled order."""
    with training_flags(plan.device):
        field = GanRace(plan)
        for context in plan.contexts:
            progress(context)
            field.enter(context)
        return field.rows(field.race(progress))


class GanRace:
    def __init__(self, plan: GanStepPlan) -> None:
        self.plan = plan
        self.calls: dict[tuple[str, str], Callable[[], Any]] = {}
        self.parameters: dict[str, int] = {}
        self.peaks: dict[str, float] = {}
        self.notes: dict[str, str] = {}

    def enter(self, context: str) -> None:
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
                nn.init.constant_(net.context.gate, 0.1)  # closed, nothing behind it would be worth computing
        self.parameters[context] = sum(p.numel() for net in networks for p in net.parameters())
        try:
            game = GanStep(plan, networks)
            loss = torch.tensor(0.0)
            for _ in range(WARMUP):
                loss = game()
            if not torch.isfinite(loss):
                self.notes[context] = f"refused: the loss is {loss.item()}"
                return
            self.peaks[context] = footprint.peak_mib(game, game.resident(), plan.device)
            calls: dict[str, Callable[[], Any]] = {STEP: game}
            if name is not None:
                calls[GENERATOR] = ContextModule(game, game.generator, plan.batch, classes=True)
                calls[DISCRIMINATOR] = ContextModule(game, game.discriminator, 2 * plan.batch, classes=False)
            for what, call in calls.items():
                call()
                self.calls[context, what] = record_graph(call) if plan.graph else call
        except torch.OutOfMemoryError:
            self.full(context)

    def full(self, context: str) -> None:
        others = len({name for name, _ in self.calls} - {context})
        self.notes[context] = "out of memory" + (f" next to {others} other GANs; try it alone" if others else "")
        self.calls = {key: call for key, call in self.calls.items() if key[0] != context}
        torch.cuda.empty_cache()

    def race(self, progress: Callable[[str], object]) -> dict[tuple[str, str], list[float]]:
        """Milliseconds by context, call and round; the first round is not counted."""
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
                        self.full(key[0])
                        continue
                    if turn:
                        samples[key].append(elapsed)
        finally:
            gc.enable()
        return {key: samples[key] for key in self.calls}

    def rows(self, samples: dict[tuple[str, str], list[float]]) -> list[GanStepRow]:
        plan, environment = self.plan, asdict(Environment.here(self.plan.device))
        added = {context: self._added(samples, context) for context in plan.contexts}
        modules = {context: self._module(samples, context) for context in plan.contexts}
        reference = samples.get((REFERENCE, STEP))
        rows = []
        for context in plan.contexts:
            steps = samples.get((context, STEP))
            timing = Timing.of(steps) if steps else None
            alone = [samples.get((context, place)) for place in (GENERATOR, DISCRIMINATOR)]
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
                    generator_ms=_rounded(alone[0] and statistics.median(alone[0])),
                    discriminator_ms=_rounded(alone[1] and statistics.median(alone[1])),
                    step_of_ylg=_rounded(_median_ratio(steps, reference)),
                    added_of_ylg=_rounded(_ratio(added[context], added.get(REFERENCE))),
                    module_of_ylg=_rounded(_ratio(modules[context], modules.get(REFERENCE))),
                    peak_mb=_rounded(self.peaks.get(context), 1),
                    note=self.notes.get(context, ""),
                    repeats=plan.repeats,
                    seed=plan.seed,
                    **environment,
                )
            )
        return rows

    def _added(self, samples: dict[tuple[str, str], list[float]], context: str) -> float | None:
        """What the context adds to a step, by the paper's own arithmetic: round by round, less the step without."""
        mine, bare = samples.get((context, STEP)), samples.get((NONE, STEP))
        if context == NONE or not mine or not bare:
            return None
        return statistics.median(one - other for one, other in zip(mine, bare, strict=True))

    def _module(self, samples: dict[tuple[str, str], list[float]], context: str) -> float | None:
        alone = [samples.get((context, place)) for place in (GENERATOR, DISCRIMINATOR)]
        return None if not all(alone) else sum(statistics.median(each) for each in alone if each)


def _median_ratio(mine: list[float] | None, other: list[float] | None) -> float | None:
    if not mine or not other:
        return None
    return statistics.median(one / its for one, its in zip(mine, other, strict=True))


def _ratio(mine: float | None, other: float | None) -> float | None:
    return None if mine is None or not other or other <= 0 else mine / other


def _rounded(value: Any, digits: int = 4) -> float | None:
    return None if value is None else round(float(value), digits)
