"""A generator and its discriminator by the name of their paper, and how that paper trained them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hamburger.errors import OptionError, UnknownNameError, check_count, did_you_mean
from hamburger.generation.networks.design import make_plan
from hamburger.generation.networks.discriminator import Discriminator
from hamburger.generation.networks.generator import Generator
from hamburger.generation.networks.layers import Style, gans

OWN = "own"


class Gan(NamedTuple):
    """`G, D = create_gan(...)`"""

    generator: Generator
    discriminator: Discriminator


def list_gans() -> list[str]:
    """Every name that `create_gan` knows."""
    return gans.names()


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
    context: str | None = OWN,
    context_options: Mapping[str, Any] | None = None,
    context_at: int | None = None,
    generator_spectral: str | None = None,
    discriminator_spectral: str | None = None,
    hidden: str | None = None,
    init: str | None = None,
    norm_eps: float | None = None,
    norm_momentum: float | None = None,
) -> Gan:
    """G(z, y) -> images b 3 h w in [-1, 1];   D(images, y) -> b

    >>> G, D = create_gan("hamgan", resolution=128, num_classes=1000)

    - `name`: "sngan" (projection, no context), "sagan", "ylg", or "hamgan", of which "hamgan-baby" and "hamgan-strong"
      are other names: they differ in how they are trained, see `gan.settings`
    - `width` and multipliers: channels of the generator's 4 x 4 map and of each doubling; of the discriminator's
      blocks, the first `discriminator_downs` of which halve the map. There are defaults for 32, 64 and 128 pixels.
    - `context`, `context_options`: what stands in both networks, instead of the paper's "own": "sagan", "ylg",
      "hamgan", any of `list_contexts()`, or None
    - `context_at`: the size of the map behind which it stands: 32 by default at 128 pixels, 16 at 64 and 32
    - all others: those of `Style`, by default the paper's
    """
    call = f"create_gan('{name}')"
    own = gans.create(name)
    for option, value, least in (("num_classes", num_classes, 1), ("latent", latent, 1)):
        check_count(call, option, value, least=least)
    if context_options is not None and not isinstance(context_options, Mapping):
        raise OptionError(f"{call}: context_options must be a mapping such as {{'rank': 32}}, got {context_options!r}")
    options = dict(context_options or {})
    changes: dict[str, Any] = {
        "generator_spectral": generator_spectral,
        "discriminator_spectral": discriminator_spectral,
        "hidden": hidden,
        "init": init,
        "norm_eps": norm_eps,
        "norm_momentum": norm_momentum,
    }
    changes = {option: value for option, value in changes.items() if value is not None}
    if context != OWN:
        own = replace(own, context=context)
    style: Style = replace(own, **changes)
    if options and style.context is None:
        raise OptionError(f"{call}: without a context there are no context_options, got {options}")
    plan = make_plan(
        call,
        resolution=resolution,
        width=width,
        generator_multipliers=generator_multipliers,
        discriminator_multipliers=discriminator_multipliers,
        discriminator_downs=discriminator_downs,
        context_at=context_at,
    )
    generator = Generator(style, plan, latent=latent, num_classes=num_classes, context_options=options)
    discriminator = Discriminator(style, plan, num_classes=num_classes, context_options=options)
    config = {
        "name": name,
        "resolution": resolution,
        "num_classes": num_classes,
        "latent": latent,
        "width": width,
        "generator_multipliers": [w // width for w in plan.generator],
        "discriminator_multipliers": [w // width for w in plan.discriminator],
        "discriminator_downs": plan.downs,
        "context": style.context,
        "context_options": options,
        "context_at": plan.context_at,
        **changes,
    }
    generator.config, discriminator.config = dict(config), dict(config)
    return Gan(generator, discriminator)


# ----------------------------------------------------------------------------------------------------------------------
# How each paper trained its networks on ImageNet at 128 pixels.


@dataclass(frozen=True)
class Settings:
    """Adam for both networks, hinge losses, classes of made images uniform; neither weight average nor truncation.

    `decay_from`: the step of the generator from which both rates fall linearly to zero; None where they stay.
    """

    batch: int
    steps: int
    generator_rate: float = 1e-4
    discriminator_rate: float = 4e-4
    betas: tuple[float, float] = (0.0, 0.999)
    discriminator_steps: int = 1
    made_batch: int | None = None
    decay_from: int | None = None


# SNGAN's joint batch over four GPUs (64 real, 128 made for a generator's step) is from memory of its paper; its
# configuration file has 16 and 32 to a GPU. The second beta of the others is what their code leaves to the framework;
# SAGAN's paper says 0.9. YLG's batch is inferred: HamGAN-strong has it and claims YLG's settings.
SETTINGS = {
    "sngan": Settings(
        batch=64,
        steps=450_000,
        generator_rate=2e-4,
        discriminator_rate=2e-4,
        betas=(0.0, 0.9),
        discriminator_steps=5,
        made_batch=128,
        decay_from=400_000,
    ),
    "sagan": Settings(batch=256, steps=1_000_000),
    "ylg": Settings(batch=1024, steps=1_000_000),
    "hamgan-baby": Settings(batch=256, steps=2_000_000),
    "hamgan-strong": Settings(batch=1024, steps=1_000_000),
}


def paper_settings(name: str) -> Settings:
    """Those of the named networks; "hamgan" alone does not say which."""
    if name == "hamgan":
        raise UnknownNameError(
            "paper_settings: 'hamgan' was trained in two ways; name 'hamgan-baby' (SAGAN's) or 'hamgan-strong' (YLG's)"
        )
    if name not in SETTINGS:
        raise UnknownNameError(f"paper_settings: no settings for '{name}'{did_you_mean(name, SETTINGS)}")
    return SETTINGS[name]
