"""The GAN trainer: updates of both networks, sample grids, checkpoints, and detection of collapse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.classification.data.batches import ImageBatch, ImageBatches
from hamburger.devices import synchronize
from hamburger.errors import TrainingError
from hamburger.generation.gan_steps import (
    BatchNormAccumulator,
    GanNetwork,
    GraphedStep,
    StepBatches,
    WeightAverage,
    compute_discriminator_terms,
    compute_rate_factor,
    draw_latents,
    generator_hinge,
)
from hamburger.generation.model import Generator
from hamburger.generation.networks.spectral import freeze_power_iterations, run_power_iterations
from hamburger.generation.recipe import CollapseRule, GanRecipe
from hamburger.generation.visualize import draw_class_rows, write_png
from hamburger.generation.weights import GENERATOR, SAMPLES, save_generator
from hamburger.training.checkpoint import Progress
from hamburger.training.loader import to_layout
from hamburger.training.metrics_log import Listener, SamplesDrawn
from hamburger.training.run_folder import RunFolder
from hamburger.training.run_lifecycle import Run, StopSignal

if TYPE_CHECKING:
    from hamburger.training.accelerator import Accelerator


@dataclass
class GanProgress(Progress):
    """`counts`: for how many steps in a row each sign of collapse has held.   `terms`, `logged`: of the last row"""

    counts: dict[str, int] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    logged: int = 0


class GanTrainer(Run[GanRecipe, GanProgress]):
    """Trains a generator and a discriminator in turn; `Run` handles log, checkpoints and interruption."""

    def __init__(
        self,
        recipe: GanRecipe,
        accelerator: Accelerator,
        folder: RunFolder,
        generator: GanNetwork,
        discriminator: GanNetwork,
        feed: ImageBatches,
        stop: StopSignal,
        listen: Listener,
    ) -> None:
        super().__init__(recipe, accelerator, folder, stop, listen, GanProgress())
        self.generator, self.discriminator = generator, discriminator
        self.networks = {"generator": generator, "discriminator": discriminator}
        self.feed, self.classes = feed, feed.dataset.classes
        self.update: Callable[[StepBatches], dict[str, Tensor]] = self.update_both
        if recipe.graph:
            self.update = GraphedStep(self.update_both)
        self.average: WeightAverage | None = None
        if recipe.average is not None:
            self.average = WeightAverage(self.generator.net, recipe.average, recipe.average_from)

    @property
    def sampling_generator(self) -> Generator:
        """The generator that makes samples: the weight average, where there is one."""
        net: Generator = self.generator.net if self.average is None else self.average.generator()
        return net

    # -- the run -------------------------------------------------------------------------------------------------

    def steps(self) -> None:
        each = self.recipe.optim.discriminator_steps
        self.clock.start()
        feed: Any = self.feed.run(self.progress.step * each, self.recipe.steps * each)
        with closing(feed):  # ends its threads, however the loop ends
            for step in range(self.progress.step, self.recipe.steps):
                self.train_step(step, list(islice(feed, each)))
                self.after_step()

    def after_step(self) -> None:
        """Log, draw samples, write a checkpoint, stop: whatever is due after this step."""
        self.log_if_due()
        sampled, saved = self._due(self.recipe.sample_every), self._due(self.recipe.checkpoint_every)
        if sampled or saved:
            synchronize(self.device)  # otherwise the clock counts the steps' work as the sampling's
            self.end_interval()
            if sampled:
                self.write_sample_grid()
            if saved:
                self.save()
            self.clock.start()
        self.stop_if_requested()

    # -- one step ------------------------------------------------------------------------------------------------

    def train_step(self, step: int, batches: StepBatches) -> None:
        """Update the discriminator once for each batch of real images, then the generator once."""
        optim = self.recipe.optim
        factor = compute_rate_factor(optim, step, self.recipe.steps)
        _set_rate(self.generator, factor * optim.generator_lr)
        _set_rate(self.discriminator, factor * optim.discriminator_lr)
        terms = self.update(batches)
        if self.average is not None:
            self.average.update(step)
        self.done(step, terms, [])

    def update_both(self, batches: StepBatches) -> dict[str, Tensor]:
        """Update both networks and return the loss terms, those of the discriminator from its last update."""
        for parts in batches:
            terms = self.update_discriminator(parts)
        count, b = len(batches[0]), len(batches[0][0].labels)
        if self.recipe.made_batch is not None:
            b = self.recipe.made_batch // (distributed.world_size() * count)
        return terms | self.update_generator(count, b)

    def update_discriminator(self, parts: Sequence[ImageBatch]) -> dict[str, Tensor]:
        """One optimizer step from the micro-batches of a batch of real images; returns the mean terms.

        Gradients are reduced over ranks with the last micro-batch only.
        """
        means: dict[str, Tensor] = {}
        network = self.discriminator
        network.optimizer.zero_grad(set_to_none=True)
        running = BatchNormAccumulator(self.generator.net, self.discriminator.net, parts=len(parts))
        with self._one_power_iteration():
            for i, part in enumerate(parts):
                z, y = self._latents(len(part.labels))
                with torch.no_grad():
                    made = self.generator.model(z, y)
                part = part._replace(images=to_layout(part.images, self.recipe))
                with nullcontext() if i + 1 == len(parts) else self.accelerator.no_sync(network.model):
                    terms = compute_discriminator_terms(network.model, part, made, y)
                    self.accelerator.backward(terms["discriminator"] / len(parts))
                running.part_done()
                for name, value in terms.items():
                    means[name] = means.get(name, 0) + value.detach() / len(parts)
        self.accelerator.optimizer_step(network.optimizer)
        return means

    def update_generator(self, parts: int, b: int) -> dict[str, Tensor]:
        """One optimizer step from `parts` micro-batches of b generated images; returns the mean loss."""
        network = self.generator
        network.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        # the gradient passes through the discriminator but not into its weights; the call bypasses DDP's wrapper,
        # which would wait for gradients that never come
        self.discriminator.net.requires_grad_(False)
        running = BatchNormAccumulator(self.generator.net, self.discriminator.net, parts=parts)
        try:
            with self._one_power_iteration():
                for i in range(parts):
                    z, y = self._latents(b)
                    with nullcontext() if i + 1 == parts else self.accelerator.no_sync(network.model):
                        made = network.model(z, y)
                        with self.accelerator.autocast():
                            loss = generator_hinge(self.discriminator.plain(made, y)) / parts
                        self.accelerator.backward(loss)
                    total = total + loss.detach()
                    running.part_done()
        finally:
            self.discriminator.net.requires_grad_(True)
        self.accelerator.optimizer_step(network.optimizer)
        return {"generator": total}

    def _latents(self, b: int) -> tuple[Tensor, Tensor]:
        return draw_latents(b, self.recipe.model.latent, len(self.classes), self.device)

    @contextmanager
    def _one_power_iteration(self) -> Iterator[None]:
        """Run one power iteration of both networks for an update, however many micro-batches it has."""
        nets = self.generator.net, self.discriminator.net
        run_power_iterations(*nets)
        with freeze_power_iterations(*nets):
            yield

    # -- log and samples -----------------------------------------------------------------------------------------

    def metrics_row(self, terms: dict[str, float]) -> dict[str, Any]:
        now = self.progress
        now.counts = count_collapse_steps(now.counts, terms, self.recipe.collapse, now.step - now.logged)
        now.terms, now.logged = dict(terms), now.step
        factor = compute_rate_factor(self.recipe.optim, now.step - 1, self.recipe.steps)
        rate = factor * self.recipe.optim.generator_lr
        return {"step": now.step, "loss": terms["discriminator"], **terms, "lr": rate}

    def progress_text(self, row: dict[str, Any]) -> str:
        return f"D {row['discriminator']:.3f}, G {row['generator']:.3f}"

    def log(self) -> None:
        super().log()
        collapse = describe_collapse(self.progress.counts, self.progress.terms, self.recipe.collapse)
        if collapse is not None:
            raise TrainingError(f"train: stopped at step {self.progress.step}: {collapse}; {self.last_written()}")

    def waited(self) -> float:
        return self.feed.waited

    def write_sample_grid(self) -> None:
        """Write a grid of samples, one row per class, from the same latents every time."""
        if not self.first:
            return
        self.check_weights()
        path = self.folder.to_write(SAMPLES) / f"step-{self.progress.step:08d}.png"
        write_png(path, draw_class_rows(self.sampling_generator))
        self.listen(SamplesDrawn(self.progress.step, path))

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, network in self.networks.items():
            state[name] = network.net.state_dict()
            state[f"{name}_optimizer"] = network.optimizer.state_dict()
        if self.average is not None:
            state["average"] = self.average.net.state_dict()
        return state

    def load(self, state: dict[str, Any]) -> None:
        for name, network in self.networks.items():
            network.net.load_state_dict(state[name])
            network.optimizer.load_state_dict(state[f"{name}_optimizer"])
            for group in network.optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"] = group["lr"].to(self.device)  # torch moves the state of weights only
        if self.average is not None:
            self.average.net.load_state_dict(state["average"])

    def data_digest(self) -> str:
        return str(self.feed.dataset.digest)

    def keep(self) -> None:
        extra = {
            "recipe": self.recipe.name,
            "data": self.recipe.data.name,
            "data_options": self.recipe.data.options,
            "split": self.recipe.data.split,
            "seed": self.recipe.seed,
            "step": self.progress.step,
            "averaged": self.average is not None,
        }
        save_generator(self.folder.to_write(GENERATOR), self.sampling_generator, self.classes, extra)

    def advice_after_divergence(self) -> str:
        return (
            "begin a new run: lower optim.generator_lr and optim.discriminator_lr, a larger batch or precision=32 are "
            "the usual cures"
        )


def _set_rate(network: GanNetwork, rate: float) -> None:
    for group in network.optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


# -- collapse: signs in the log that hold for many steps in a row ------------------------------------------------------


def count_collapse_steps(
    before: Mapping[str, int], terms: Mapping[str, float], rule: CollapseRule, steps: int
) -> dict[str, int]:
    """For how many steps in a row each sign has held, including the `steps` of this log line."""
    signs = {
        "won": terms["discriminator"] < rule.won,
        "blind": abs(terms["real"] - terms["made"]) < rule.blind,
        "uniform": terms["spread"] < rule.uniform,
    }
    return {name: before.get(name, 0) + steps if holds else 0 for name, holds in signs.items()}


def describe_collapse(counts: Mapping[str, int], terms: Mapping[str, float], rule: CollapseRule) -> str | None:
    """What has happened and what to change, or None while no sign has held for `patience` steps."""
    name = next((name for name, steps in counts.items() if rule.patience and steps >= rule.patience), None)
    if name is None:
        return None
    problem, remedy = {
        "won": (
            f"the discriminator separates real from generated images perfectly (its loss is "
            f"{terms['discriminator']:.4f}, below {rule.won:g}), so the generator no longer learns",
            "a lower optim.discriminator_lr, optim.discriminator_steps=1, data.flip=true or more images",
        ),
        "blind": (
            f"the discriminator gives real and generated images the same score ({terms['real']:.4f} and "
            f"{terms['made']:.4f}), so the generator cannot learn from it",
            "a higher optim.discriminator_lr, more optim.discriminator_steps, or precision=32",
        ),
        "uniform": (
            f"the generator makes nearly the same image every time (the variation is {100 * terms['spread']:.1f} % of "
            f"that of real images)",
            "a lower optim.generator_lr, a larger batch, or more optim.discriminator_steps",
        ),
    }[name]
    return (
        f"{problem}, for {counts[name]} steps; start a new run with {remedy}, or with collapse.patience=0, which never "
        f"stops"
    )
