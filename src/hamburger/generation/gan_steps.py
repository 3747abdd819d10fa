"""One update of the discriminator and one of the generator: losses, optimizers, batch-norm statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger import distributed
from hamburger.classification.data.batches import ImageBatch
from hamburger.generation.networks.create import create_gan
from hamburger.generation.networks.discriminator import Discriminator, discriminator_hinge, generator_hinge
from hamburger.generation.networks.generator import Generator
from hamburger.generation.networks.layers import channels_last
from hamburger.generation.recipe import GanOptim, GanRecipe
from hamburger.layers.norm import convert_sync

if TYPE_CHECKING:
    from lightning.fabric import Fabric


Judge = Callable[[Tensor, Tensor], Tensor]


class Player(NamedTuple):
    """`net` is the network itself, `plain` the same perhaps compiled, `model` as Fabric wraps that."""

    net: Any
    plain: Any
    model: Any
    optimizer: torch.optim.Adam
    wrapped_optimizer: Any


class Players(NamedTuple):
    generator: Player
    discriminator: Player


def build(recipe: GanRecipe, k: int) -> tuple[Generator, Discriminator]:
    """Both on the CPU, drawn from the recipe's seed, for k classes."""
    model = recipe.model
    torch.manual_seed(recipe.seed)
    generator, discriminator = create_gan(
        model.name,
        resolution=model.resolution,
        num_classes=k,
        latent=model.latent,
        width=model.width,
        context=model.context,
        context_options=model.context_options,
        **model.options,
    )
    return generator.train(), discriminator.train()


def assemble(recipe: GanRecipe, fabric: Fabric, k: int) -> Players:
    """Equal in all processes, on the device."""
    rates = (recipe.optim.generator_lr, recipe.optim.discriminator_lr)
    nets: tuple[Any, Any] = build(recipe, k)
    return Players(*(_player(recipe, fabric, net, rate) for net, rate in zip(nets, rates, strict=True)))


def _player(recipe: GanRecipe, fabric: Fabric, net: Any, rate: float) -> Player:
    if recipe.sync_bn and distributed.world() > 1:
        convert_sync(net)
    if recipe.channels_last:
        net.to(memory_format=torch.channels_last)
    net.to(fabric.device)
    optimizer = adam(net, recipe.optim, rate, capturable=recipe.graph)
    plain: Any = torch.compile(net) if recipe.compile else net
    model, wrapped = fabric.setup(plain, optimizer)
    return Player(net, plain, model, optimizer, wrapped)


def adam(net: torch.nn.Module, optim: GanOptim, rate: float, *, capturable: bool = False) -> torch.optim.Adam:
    """`capturable`: its rate and its count of steps lie on the device, where a recorded step reads them anew."""
    device = next(net.parameters()).device
    on_card = device.type == "cuda"  # where one launch serves all weights instead of a dozen
    lr: float | Tensor = torch.tensor(rate, device=device) if capturable and on_card else rate
    made = torch.optim.Adam(
        net.parameters(),
        lr=lr,
        betas=(optim.beta1, optim.beta2),
        fused=on_card,
        capturable=capturable and on_card,
    )
    # the steps before the recording are meant to run without one, and torch would warn of them
    made._warned_capturable_if_run_uncaptured = True
    return made


def rate_share(optim: GanOptim, step: int, steps: int) -> float:
    """What both rates are of their first value at a step: 1, and from `decay_from` on less, in a line to 0."""
    if optim.decay_from is None or step < optim.decay_from:
        return 1.0
    return (steps - step) / (steps - optim.decay_from)


def discriminator_move(judge: Judge, real: ImageBatch, made: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """The hinge loss (`discriminator`), the mean answers to both kinds, and how varied made images are.

    Real and made images go through in pairs, in one call: half the launches, one power iteration, and the rows of
    several processes one after another are those of a single one.
    """
    shape = (2 * len(made), *made.shape[1:])
    images = real.images
    layout = torch.channels_last if channels_last(images) else torch.contiguous_format
    pairs = torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=layout)
    pairs[0::2], pairs[1::2] = images, made
    answers = judge(pairs, torch.stack([real.labels, classes], 1).flatten()).unflatten(0, (-1, 2)).unbind(1)
    with torch.no_grad():
        spread = made.float().std(0).mean() / real.images.std(0).mean().clamp_min(1e-6)
    return {
        "discriminator": discriminator_hinge(*answers),
        "real": answers[0].detach().float().mean(),
        "made": answers[1].detach().float().mean(),
        "spread": spread,
    }


def generator_move(judge: Judge, made: Tensor, classes: Tensor) -> Tensor:
    return generator_hinge(judge(made, classes))


def draw(b: int, latent: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """z: b latent and y: b, this process's part of what one with the joined batch would draw."""
    z = distributed.joined_draw(lambda rows: torch.randn(rows, latent, device=device), b)
    return z, distributed.joined_draw(lambda rows: torch.randint(k, (rows,), device=device), b)


# ----------------------------------------------------------------------------------------------------------------------
# Running statistics of batch norm that move once for all accumulated parts of a batch.


class Running:
    """Every part moves them from where the batch found them; the last one leaves their mean over the parts.

    That is one move, by the usual momentum, towards the mean of the parts' means and variances. Moves one after another
    would follow `parts` times as fast, the last part most. With one part nothing is done.
    """

    def __init__(self, *nets: nn.Module, parts: int) -> None:
        self.left = self.parts = parts
        norms = [module for net in nets for module in net.modules() if isinstance(module, _BatchNorm)]
        held = [value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None]
        self.values: list[Tensor] = held if parts > 1 else []
        self.before = [value.clone() for value in self.values]
        self.sums = [torch.zeros_like(value) for value in self.values]

    @torch.no_grad()
    def part_done(self) -> None:
        """After the part's own gradients: what a backward pass may still read must not change."""
        self.left -= 1
        if not self.values:
            return
        torch._foreach_add_(self.sums, self.values)
        if not self.left:
            torch._foreach_div_(self.sums, self.parts)
        torch._foreach_copy_(self.values, self.before if self.left else self.sums)
