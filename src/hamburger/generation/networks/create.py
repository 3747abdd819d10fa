"""Create a generator and a discriminator by the name of their paper, and look up how the paper trained them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hamburger.errors import OptionError, UnknownNameError, check_count, did_you_mean
from hamburger.generation.networks.design import plan_gan
from hamburger.generation.networks.discriminator import Discriminator
from hamburger.generation.networks.generator import Generator
from hamburger.generation.networks.layers import GanStyle, gan_styles

OWN_CONTEXT = "own"


class Gan(NamedTuple):
    """`G, D = create_gan(...)`"""

    generator: Generator
    discriminator: Discriminator


def list_gans() -> list[str]:
    """All names that `create_gan` accepts."""
    return gan_styles.names()


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

    - `name`: "sngan" (projection, no context), "sagan", "ylg" or "hamgan". "hamgan-baby" and "hamgan-strong" are the
      same networks as "hamgan"; they differ in training only, see `paper_settings`
    - `width` and multipliers: channels of the generator's 4 x 4 map and after each upsampling; of the discriminator's
      blocks, the first `discriminator_downs` of which halve the map. There are defaults for 32, 64 and 128 pixels.
    - `context`, `context_options`: the context module of both networks: "own" (the paper's), "sagan", "ylg", "hamgan",
      any of `list_contexts()`, or None
    - `context_at`: the map size at which it is inserted: 32 by default at 128 pixels, 16 at 64 and 32
    - all others: fields of `GanStyle`, by default the paper's
    """
    call = f"create_gan('{name}')"
    paper_style = gan_styles.create(name)
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
    if context != OWN_CONTEXT:
        paper_style = replace(paper_style, context=context)
    style: GanStyle = replace(paper_style, **changes)
    if options and style.context is None:
        raise OptionError(f"{call}: context_options need a context, got {options} without one; leave them out")
    plan = plan_gan(
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


# -- training settings of the papers, on ImageNet at 128 pixels --------------------------------------------------------


@dataclass(frozen=True)
class PaperSettings:
    """Training settings of a paper: Adam, hinge losses, uniform classes, neither weight average nor truncation.

    `decay_from`: the generator step from which both rates decay linearly to zero; None: constant rates.
    """

    batch: int
    steps: int
    generator_rate: float = 1e-4
    discriminator_rate: float = 4e-4
    betas: tuple[float, float] = (0.0, 0.999)
    discriminator_steps: int = 1
    made_batch: int | None = None
    decay_from: int | None = None


# SNGAN's global batch over four GPUs (64 real, 128 generated in a generator step) is from memory of its paper; its
# configuration file has 16 and 32 per GPU. The second beta of the others is the framework's default in their code;
# SAGAN's paper says 0.9. YLG's batch is inferred: HamGAN-strong uses it and claims YLG's settings.
SETTINGS = {
    "sngan": PaperSettings(
        batch=64,
        steps=450_000,
        generator_rate=2e-4,
        discriminator_rate=2e-4,
        betas=(0.0, 0.9),
        discriminator_steps=5,
        made_batch=128,
        decay_from=400_000,
    ),
    "sagan": PaperSettings(batch=256, steps=1_000_000),
    "ylg": PaperSettings(batch=1024, steps=1_000_000),
    "hamgan-baby": PaperSettings(batch=256, steps=2_000_000),
    "hamgan-strong": PaperSettings(batch=1024, steps=1_000_000),
}


def paper_settings(name: str) -> PaperSettings:
    """How the paper of the named networks trained them; "hamgan" alone is ambiguous."""
    if name == "hamgan":
        raise UnknownNameError(
            "paper_settings: 'hamgan' was trained in two ways; name 'hamgan-baby' (SAGAN's) or 'hamgan-strong' (YLG's)"
        )
    if name not in SETTINGS:
        raise UnknownNameError(f"paper_settings: no settings for '{name}'{did_you_mean(name, SETTINGS)}")
    return SETTINGS[name]


@gan_styles.register("sngan")
def sngan() -> GanStyle:
    """SNGAN with projection (Miyato & Koyama, "cGANs with projection discriminator", ICLR 2018): no context.

    Only its discriminator is spectrally normalised, and the hidden width of its blocks is that of their input. Eps and
    momentum of batch norm are the defaults of the authors' framework, from memory and not checked against their code.
    """
    return GanStyle(
        context=None,
        generator_spectral="none",
        discriminator_spectral="equality",
        hidden="in",
        init="xavier-relu",
        norm_eps=2e-5,
        norm_momentum=0.1,
    )
