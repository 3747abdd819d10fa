"""The training loop of a GAN: moves of both networks, sheets of samples, and a watch for games that are over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.classification.data.batches import Feed, ImageBatch
from hamburger.errors import TrainingError
from hamburger.generation.collapse import counted, verdict
from hamburger.generation.gan_steps import (
    Player,
    Players,
    Running,
    discriminator_move,
    draw,
    generator_move,
    rate_share,
)
from hamburger.generation.graphed_step import Replayed
from hamburger.generation.image_sheets import sheet, to_bytes, write_png
from hamburger.generation.networks.generator import Generator
from hamburger.generation.networks.spectral import iterate, resting
from hamburger.generation.recipe import GanRecipe
from hamburger.generation.sampling import sample
from hamburger.generation.weight_average import Average
from hamburger.generation.weights import GeneratorInfo, save_generator
from hamburger.training.checkpoint import Progress
from hamburger.training.interrupt import StopSignal
from hamburger.training.metrics_log import Listener, SamplesDrawn
from hamburger.training.run_folder import RunFolder
from hamburger.training.run_lifecycle import Run

if TYPE_CHECKING:
    from lightning.fabric import Fabric
from hamburger.generation.weights import GENERATOR, SAMPLES

ROWS, COLUMNS = 8, 10  # of a sheet: classes, and images of each
SAMPLE_SEED = 0  # the same latents in every run, so that sheets can be laid side by side


@dataclass
class GanProgress(Progress):
    """`counts`: for how many steps each sign of a collapse has held.   `terms`: those of the last line of the log"""

    counts: dict[str, int] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    logged: int = 0


class GanLoop(Run[GanRecipe, GanProgress]):
    def __init__(
        self,
        recipe: GanRecipe,
        fabric: Fabric,
        folder: RunFolder,
        players: Players,
        feed: Feed,
        stop: StopSignal,
        listen: Listener,
    ) -> None:
        super().__init__(recipe, fabric, folder, stop, listen, GanProgress())
        self.generator, self.discriminator = players
        self.feed, self.classes = feed, feed.set.classes
        self.moves: Callable[[Sequence[list[ImageBatch]]], dict[str, Tensor]] = self.both_move
        if recipe.graph:
            self.moves = Replayed(self.both_move)
        self.average: Average | None = None
        if recipe.average is not None:
            self.average = Average(self.generator.net, recipe.average, recipe.average_from)

    @property
    def maker(self) -> Generator:
        """The network that samples come from."""
        net: Generator = self.generator.net if self.average is None else self.average.settled()
        return net

    # -- the run -------------------------------------------------------------------------------------------------

    def steps(self) -> None:
        each = self.recipe.optim.discriminator_steps
        self.clock.start()
        feed: Any = self.feed.run(self.progress.step * each, self.recipe.steps * each)
        with closing(feed):  # its threads end with the loop, however that ends
            for step, draws in enumerate(_grouped(feed, each), start=self.progress.step):
                self.train_step(step, draws)
                self.after_step()

    def milestones(self) -> None:
        sampled, saved = self._due(self.recipe.sample_every), self._due(self.recipe.checkpoint_every)
        if not (sampled or saved):
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # or the steps' work would be counted as the sheet's
        self.lap()
        if sampled:
            self.draw_sheet()
        if saved:
            self.save()
        self.clock.start()

    # -- one step ------------------------------------------------------------------------------------------------

    def train_step(self, step: int, draws: Sequence[list[ImageBatch]]) -> None:
        """Moves of the discriminator, one for each draw of real images, then one of the generator."""
        optim = self.recipe.optim
        share = rate_share(optim, step, self.recipe.steps)
        _set_rate(self.generator, share * optim.generator_lr)
        _set_rate(self.discriminator, share * optim.discriminator_lr)
        terms = self.moves(draws)
        if self.average is not None:
            self.average.update(step)
        self.done(step, terms, [])

    def both_move(self, draws: Sequence[list[ImageBatch]]) -> dict[str, Tensor]:
        for parts in draws:
            terms = self.move_discriminator(parts)
        count, b = len(draws[0]), len(draws[0][0].labels)
        if self.recipe.made_batch is not None:
            b = self.recipe.made_batch // (distributed.world() * count)
        return terms | self.move_generator(count, b)

    def move_discriminator(self, parts: Sequence[ImageBatch]) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        player = self.discriminator
        player.optimizer.zero_grad(set_to_none=True)
        running = Running(self.generator.net, self.discriminator.net, parts=len(parts))
        with self._one_power_iteration():
            for i, part in enumerate(parts):
                z, y = self._latents(len(part.labels))
                with torch.no_grad():
                    made = self.generator.model(z, y)
                with self._joined(player, last=i + 1 == len(parts)):
                    terms = discriminator_move(player.model, self._laid(part), made, y)
                    self.fabric.backward(terms["discriminator"] / len(parts))
                running.part_done()
                for name, value in terms.items():
                    own = value.detach() / len(parts)
                    seen[name] = seen[name] + own if name in seen else own
        player.wrapped_optimizer.step()
        return seen

    def move_generator(self, parts: int, b: int) -> dict[str, Tensor]:
        player = self.generator
        player.optimizer.zero_grad(set_to_none=True)
        total: Tensor | None = None
        # the gradient goes through the discriminator, not into it; it is called past Fabric's wrapper, which would
        # wait for gradients that never come
        self.discriminator.net.requires_grad_(False)
        running = Running(self.generator.net, self.discriminator.net, parts=parts)
        try:
            with self._one_power_iteration():
                for i in range(parts):
                    z, y = self._latents(b)
                    with self._joined(player, last=i + 1 == parts):
                        made = player.model(z, y)
                        with self.fabric.autocast():
                            loss = generator_move(self.discriminator.plain, made, y) / parts
                        self.fabric.backward(loss)
                    total = loss.detach() if total is None else total + loss.detach()
                    running.part_done()
        finally:
            self.discriminator.net.requires_grad_(True)
        player.wrapped_optimizer.step()
        assert total is not None
        return {"generator": total}

    def _latents(self, b: int) -> tuple[Tensor, Tensor]:
        return draw(b, self.recipe.model.latent, len(self.classes), self.device)

    def _joined(self, player: Player, *, last: bool) -> Any:
        """Gradients cross the processes with the last accumulated part."""
        return self.fabric.no_backward_sync(player.model) if distributed.world() > 1 and not last else nullcontext()

    @contextmanager
    def _one_power_iteration(self) -> Iterator[None]:
        """One for a move, of both networks, however many parts its batch has."""
        nets = self.generator.net, self.discriminator.net
        iterate(*nets)
        with resting(*nets):
            yield

    def _laid(self, part: ImageBatch) -> ImageBatch:
        if not self.recipe.channels_last:
            return part
        return part._replace(images=part.images.contiguous(memory_format=torch.channels_last))

    # -- log and samples -----------------------------------------------------------------------------------------

    def line(self, terms: dict[str, float]) -> dict[str, Any]:
        now = self.progress
        now.counts = counted(now.counts, terms, self.recipe.collapse, now.step - now.logged)
        now.terms, now.logged = dict(terms), now.step
        share = rate_share(self.recipe.optim, now.step - 1, self.recipe.steps)
        rate = share * self.recipe.optim.generator_lr
        return {"step": now.step, "loss": terms["discriminator"], **terms, "lr": rate}

    def words(self, row: dict[str, Any]) -> str:
        return f"D {row['discriminator']:.3f}, G {row['generator']:.3f}"

    def log(self) -> None:
        super().log()
        said = verdict(self.progress.counts, self.progress.terms, self.recipe.collapse)
        if said is not None:
            raise TrainingError(f"train: stopped at step {self.progress.step}: {said}; {self.last_written()}")

    def waited(self) -> float:
        return self.feed.waited

    def draw_sheet(self) -> None:
        """The same latents every time, a row a class."""
        if not self.first:
            return
        self.check_weights()  # NaN would be drawn as grey, which looks like a young generator's work
        made = sheet(class_rows(self.maker), columns=COLUMNS)
        path = self.folder.path / SAMPLES / f"step-{self.progress.step:08d}.png"
        write_png(path, made)
        self.listen(SamplesDrawn(self.progress.step, path))

    # -- what is kept --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, player in (("generator", self.generator), ("discriminator", self.discriminator)):
            found[name] = player.net.state_dict()
            found[f"{name}_optimizer"] = player.optimizer.state_dict()
        if self.average is not None:
            found["average"] = self.average.state()
        return found

    def load(self, state: dict[str, Any]) -> None:
        for name, player in (("generator", self.generator), ("discriminator", self.discriminator)):
            player.net.load_state_dict(state[name])
            player.optimizer.load_state_dict(state[f"{name}_optimizer"])
            for group in player.optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"] = group["lr"].to(self.device)  # torch moves what belongs to weights, and nothing else
        if self.average is not None:
            self.average.load(state["average"])

    def tensors(self) -> list[Tensor]:
        found: list[Tensor] = []
        for player in (self.generator, self.discriminator):
            states = player.optimizer.state.values()
            found += player.net.state_dict().values()
            found += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return found

    def data_digest(self) -> str:
        return self.feed.set.digest

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
        save_generator(self.folder.path / GENERATOR, self.maker, GeneratorInfo(self.classes, extra))

    def cures(self) -> str:
        return (
            "begin a new run: lower optim.generator_lr and optim.discriminator_lr, a larger batch or precision=32 are "
            "the usual cures"
        )


def class_rows(generator: Generator, *, rows: int = ROWS, columns: int = COLUMNS, seed: int = SAMPLE_SEED) -> Tensor:
    """Images of the first classes, one class after another.   ->   (rows columns) 3 h w, uint8"""
    classes = torch.arange(min(rows, generator.num_classes)).repeat_interleave(columns)
    return to_bytes(sample(generator, len(classes), seed=seed, labels=classes))


def _set_rate(player: Player, rate: float) -> None:
    for group in player.optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _grouped(feed: Iterator[list[ImageBatch]], each: int) -> Iterator[list[list[ImageBatch]]]:
    """As many draws as a step takes."""
    while draws := list(islice(feed, each)):
        yield draws
