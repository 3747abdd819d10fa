"""Generators and discriminators by the name of their paper: HamGAN, SNGAN, SAGAN and YLG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_counts
from hamburger.errors import (
    InputError,
    OptionError,
    ShapeError,
    UnknownNameError,
    check_choice,
    check_count,
    check_mapping,
    check_positive,
    did_you_mean,
)
from hamburger.generation.networks.contexts import create_gan_context
from hamburger.generation.networks.layers import INITS, DownBlock, LayerFactory, UpBlock
from hamburger.generation.networks.spectral import CONVENTIONS
from hamburger.registry import explain_errors
from hamburger.tensors import check_tensor, debugging

OWN_CONTEXT = "own"
FIRST_SIZE = 4  # a generator's first map is 4 x 4

# Channels in units of `width`. At 128 pixels those of all papers here; at 64 those of BigGAN and at 32 those of SNGAN
# on CIFAR, both from memory. None of the papers compares contexts at these sizes.
GENERATOR = {128: (16, 16, 8, 4, 2, 1), 64: (16, 16, 8, 4, 2), 32: (4, 4, 4, 4)}
DISCRIMINATOR = {128: (1, 2, 4, 8, 16, 16), 64: (1, 2, 4, 8, 16), 32: (2, 2, 2, 2)}
DOWNS = {128: 5, 64: 4, 32: 2}
CONTEXT_AT = {128: 32, 64: 16, 32: 16}


class Gan(NamedTuple):
    """`G, D = create_gan(...)`"""

    generator: Generator
    discriminator: Discriminator


def list_gans() -> list[str]:
    """All names that `create_gan` accepts."""
    return sorted(STYLES)


@explain_errors("create_gan")
def create_gan(
    name: str = "hamgan",
    *,
    resolution: int = 128,
    num_classes: int = 1000,
    latent: int = 128,
    width: int = 64,
    generator_multipliers: Sequence[int] | None = None,
    discriminator_multipliers: Sequence[int] | None = None,
    discriminator_downs: int | None = None,
    context: str | None = OWN_CONTEXT,
    context_options: Mapping[str, Any] | None = None,
    context_at: int | None = None,
    generator_spectral: str | None = None,
    discriminator_spectral: str | None = None,
    hidden: str | None = None,
    init: str | None = None,
    norm_eps: float | None = None,
    norm_momentum: float | None = None,
) -> Gan:
    """The generator, G(z, y) -> images b 3 h w in [-1, 1], and the discriminator, D(images, y) -> b.

    >>> G, D = create_gan("hamgan", resolution=128, num_classes=1000)
    >>> images = G(torch.randn(8, 128), torch.randint(1000, (8,)))      # (8, 3, 128, 128)

    - `name`: "sngan" (projection, no context), "sagan", "ylg" or "hamgan". "hamgan-baby" and "hamgan-strong" are the
      same networks as "hamgan"; they differ in training only, see the recipes of these names
    - `width` and multipliers: channels of the generator's 4 x 4 map and after each upsampling; of the discriminator's
      blocks, the first `discriminator_downs` of which halve the map. There are defaults for 32, 64 and 128 pixels.
    - `context`, `context_options`: the context module of both networks: "own" (the paper's), "sagan", "ylg", "hamgan",
      any of `list_contexts()`, or None
    - `context_at`: the map size at which it is inserted: 32 by default at 128 pixels, 16 at 64 and 32
    - all others: fields of `GanStyle`, by default the paper's
    """
    config = dict(locals())
    call = f"create_gan('{name}')"
    if name not in STYLES:
        raise UnknownNameError(f"no GAN '{name}'{did_you_mean(name, STYLES)}")
    check_count(call, "num_classes", num_classes, least=1)
    check_count(call, "latent", latent, least=1)
    options = check_mapping(call, "context_options", context_options)
    # the options of the style that were given; the others are not stored, so that they stay those of the paper
    changes = {field.name: value for field in fields(GanStyle) if (value := config.pop(field.name)) is not None}
    changes["context"] = STYLES[name].context if context == OWN_CONTEXT else context
    style = replace(STYLES[name], **changes)
    if options and style.context is None:
        raise OptionError(f"{call}: context_options need a context, got {options} without one; leave them out")
    multipliers = generator_multipliers, discriminator_multipliers
    plan = plan_gan(call, resolution, width, *multipliers, discriminator_downs, context_at)
    generator = Generator(style, plan, latent=latent, num_classes=num_classes, context_options=options)
    discriminator = Discriminator(style, plan, num_classes=num_classes, context_options=options)
    config |= {
        "generator_multipliers": [w // width for w in plan.generator],
        "discriminator_multipliers": [w // width for w in plan.discriminator],
        "discriminator_downs": plan.downs,
        "context_options": options,
        "context_at": plan.context_at,
        **changes,
    }
    generator.config, discriminator.config = dict(config), dict(config)
    return Gan(generator, discriminator)


# -- style of a paper's networks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GanStyle:
    """Options that distinguish the networks of the papers.

    - `context`: name of the context in both networks, or None
    - `generator_spectral`, `discriminator_spectral`: "none", "equality" or "inequality", see `SpectralNorm`. Contexts
      are normalised by "equality" unless their network has "none".
    - `hidden`: channels between the two convolutions of a discriminator's block, those of its input or of its output
    - `init`: "xavier" (uniform), or "xavier-relu" (the same, with gain sqrt(2) for 3 x 3 convolutions inside blocks).
      Biases are zero.
    - `norm_eps`, `norm_momentum`: of every batch norm, as in torch
    """

    context: str | None
    generator_spectral: str = "inequality"
    discriminator_spectral: str = "inequality"
    hidden: str = "out"
    init: str = "xavier"
    norm_eps: float = 1e-3
    norm_momentum: float = 1e-3

    def __post_init__(self) -> None:
        call = "create_gan"
        if not (self.context is None or isinstance(self.context, str)):
            raise OptionError(
                f"{call}: context must be a name or None, got {type(self.context).__name__}; the two networks need "
                f"separate modules, so register yours with hamburger.contexts and give its name"
            )
        check_choice(call, "generator_spectral", self.generator_spectral, CONVENTIONS)
        check_choice(call, "discriminator_spectral", self.discriminator_spectral, CONVENTIONS)
        check_choice(call, "hidden", self.hidden, ("in", "out"))
        check_choice(call, "init", self.init, INITS)
        check_positive(call, "norm_eps", self.norm_eps)
        check_positive(call, "norm_momentum", self.norm_momentum, zero=True, most=1.0)

    def layers(self, spectral: str) -> LayerFactory:
        """The layers of one of the two networks."""
        return LayerFactory(spectral, self.init, self.norm_eps, self.norm_momentum)


STYLES = {
    # Miyato & Koyama, "cGANs with projection discriminator", ICLR 2018. Only its discriminator is spectrally
    # normalised. Eps and momentum of batch norm are the defaults of the authors' framework, from memory and not checked
    # against their code.
    "sngan": GanStyle(
        context=None,
        generator_spectral="none",
        discriminator_spectral="equality",
        hidden="in",
        init="xavier-relu",
        norm_eps=2e-5,
        norm_momentum=0.1,
    ),
    "sagan": GanStyle(context="sagan"),
    "ylg": GanStyle(context="ylg"),
    **dict.fromkeys(("hamgan", "hamgan-baby", "hamgan-strong"), GanStyle(context="hamgan")),
}


# -- map sizes and channels --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GanPlan:
    """Channels of the generator's first map and up-blocks, and of the discriminator's blocks, of which the first
    `downs` halve the map. The context follows the first block of each network whose output is `context_at` wide."""

    resolution: int
    generator: tuple[int, ...]
    discriminator: tuple[int, ...]
    downs: int
    context_at: int


def plan_gan(
    call: str,
    resolution: int,
    width: int,
    generator_multipliers: Sequence[int] | None,
    discriminator_multipliers: Sequence[int] | None,
    discriminator_downs: int | None,
    context_at: int | None,
) -> GanPlan:
    """The plan for these options of `create_gan`, with the defaults of the resolution."""
    check_count(call, "resolution", resolution, least=4 * FIRST_SIZE)
    check_count(call, "width", width, least=1)
    if resolution & (resolution - 1):
        raise OptionError(f"{call}: resolution must be a power of two, got {resolution}; 32, 64 and 128 have defaults")
    ups = (resolution // FIRST_SIZE).bit_length() - 1
    up = _multipliers(call, "generator_multipliers", generator_multipliers, GENERATOR, resolution)
    down = _multipliers(call, "discriminator_multipliers", discriminator_multipliers, DISCRIMINATOR, resolution)
    if len(up) != ups + 1:
        raise OptionError(
            f"{call}: resolution {resolution} takes {ups + 1} generator_multipliers, one for the map of {FIRST_SIZE} x "
            f"{FIRST_SIZE} and one for each of {ups} up-blocks, got {len(up)}: {up}"
        )
    if discriminator_downs is None:
        default = discriminator_multipliers is None
        discriminator_downs = DOWNS[resolution] if default else min(len(down), ups)
    check_count(call, "discriminator_downs", discriminator_downs, least=1)
    most = min(len(down), ups + 1)
    if discriminator_downs > most:
        raise OptionError(
            f"{call}: discriminator_downs must be at most {most} for {len(down)} blocks at resolution {resolution}, "
            f"got {discriminator_downs}"
        )
    sizes = [resolution >> i for i in range(1, discriminator_downs + 1) if resolution >> i > FIRST_SIZE]
    if context_at is None:
        usual = CONTEXT_AT.get(resolution, resolution // 4)
        context_at = usual if usual in sizes else sizes[-1]
    if context_at not in sizes:
        raise OptionError(
            f"{call}: context_at must be the size of a map after a block of both networks, one of {sizes}, got "
            f"{context_at!r}"
        )
    return GanPlan(
        resolution, tuple(width * m for m in up), tuple(width * m for m in down), discriminator_downs, context_at
    )


def _multipliers(
    call: str, option: str, requested: Sequence[int] | None, defaults: dict[int, tuple[int, ...]], resolution: int
) -> tuple[int, ...]:
    if requested is not None:
        check_counts(call, option, requested, example=defaults[64])
        return tuple(requested)
    if resolution not in defaults:
        raise OptionError(
            f"{call}: there are default widths for {sorted(defaults)} pixels, not for {resolution}; give {option}"
        )
    return defaults[resolution]


# -- networks ----------------------------------------------------------------------------------------------------------


class Generator(nn.Module):
    """z: b latent, y: b   ->   images b 3 h w in [-1, 1]

    Linear to 4 x 4, up-blocks, batch norm (without classes), ReLU, conv 3, tanh. `config` holds the arguments of
    `create_gan`.
    """

    config: dict[str, Any]

    def __init__(
        self, style: GanStyle, plan: GanPlan, *, latent: int, num_classes: int, context_options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        layers, widths = style.layers(style.generator_spectral), plan.generator
        self.latent, self.num_classes, self.resolution = latent, num_classes, plan.resolution
        self.project = layers.linear(latent, widths[0] * FIRST_SIZE * FIRST_SIZE)
        self.blocks = nn.ModuleList(UpBlock(i, o, num_classes=num_classes, layers=layers) for i, o in pairwise(widths))
        self.context_block = (plan.context_at // FIRST_SIZE).bit_length() - 2
        self.context = create_gan_context(
            style.context,
            widths[self.context_block + 1],
            size=plan.context_at,
            layers=layers,
            num_classes=num_classes,
            options=context_options,
        )
        self.norm = layers.norm(widths[-1])
        self.out = layers.conv(widths[-1], 3)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        check_tensor("Generator", "z", z)
        if z.dim() != 2 or z.shape[1] != self.latent:
            raise ShapeError(f"Generator: z must be (b, {self.latent}), got {tuple(z.shape)}")
        check_classes("Generator", y, z.shape[0], self.num_classes)
        x = self.project(z).unflatten(1, (-1, FIRST_SIZE, FIRST_SIZE))
        for i, block in enumerate(self.blocks):
            x = block(x, y)
            if i == self.context_block and self.context is not None:
                x = self.context(x, y)
        return torch.tanh(self.out(torch.relu(self.norm(x))))


class Discriminator(nn.Module):
    """images b 3 h w, y: b   ->   b

        h = sum over pixels of ReLU of the last block    D = linear(h) + <embedding(y), h>

    The second term is the projection head of Miyato & Koyama. `config` holds the arguments of `create_gan`.
    """

    config: dict[str, Any]

    def __init__(self, style: GanStyle, plan: GanPlan, *, num_classes: int, context_options: Mapping[str, Any]) -> None:
        super().__init__()
        layers, widths = style.layers(style.discriminator_spectral), plan.discriminator
        self.num_classes, self.resolution = num_classes, plan.resolution
        self.blocks = nn.ModuleList([DownBlock(3, widths[0], first=True, layers=layers)])
        for index, (i, o) in enumerate(pairwise(widths), start=1):
            self.blocks.append(DownBlock(i, o, hidden=style.hidden, down=index < plan.downs, layers=layers))
        self.context_block = (plan.resolution // plan.context_at).bit_length() - 2
        self.context = create_gan_context(
            style.context, widths[self.context_block], size=plan.context_at, layers=layers, options=context_options
        )
        self.out = layers.linear(widths[-1], 1)
        self.classes = layers.embedding(num_classes, widths[-1])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        check_tensor("Discriminator", "the images", x)
        if x.dim() != 4 or x.shape[1:] != (3, self.resolution, self.resolution):
            raise ShapeError(
                f"Discriminator: the images must be (b, 3, {self.resolution}, {self.resolution}), got {tuple(x.shape)}"
            )
        check_classes("Discriminator", y, x.shape[0], self.num_classes)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == self.context_block and self.context is not None:
                x = self.context(x)
        h = torch.relu(x).sum((2, 3))
        out: Tensor = self.out(h)[:, 0] + (self.classes(y) * h).sum(1)
        return out


def check_classes(call: str, y: Tensor, b: int, num_classes: int) -> None:
    """Raise unless y holds a class for each sample. On a GPU the range is checked only under `debug()`, as it syncs."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.dtype == torch.bool:
        got = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"{call}: the classes must be a tensor of whole numbers, got {got}; pass y.long()")
    if y.shape != (b,):
        raise ShapeError(f"{call}: there must be one class per sample, ({b},), got {tuple(y.shape)}")
    if torch.compiler.is_compiling() or not (y.device.type == "cpu" or debugging()) or not b:
        return
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        raise InputError(
            f"{call}: classes must lie in 0 ... {num_classes - 1}, got {low} ... {high}; build the networks with "
            f"num_classes={high + 1} or more"
        )
