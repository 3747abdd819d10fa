"""A GAN's training as a value, in the same form as that of a segmentation network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hamburger.recipes.base import LATE, Training
from hamburger.registry import Registry


@dataclass(frozen=True)
class Networks:
    """Keywords of `create_gan`; `options` are those that have no field here, such as `norm_momentum`."""

    name: str = "hamgan"
    resolution: int = 128
    latent: int = 128
    width: int = 64
    context: str | None = "own"  # "own" is that of the named paper
    context_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Images:
    name: str = "figures"
    options: dict[str, Any] = field(default_factory=dict)
    split: str = "train"
    flip: bool = False  # mirror half of the images
    workers: int = 4
    resident: str = "auto"  # keep the whole set on the device: "auto", "yes" or "no"


@dataclass(frozen=True)
class TwoRates:
    """Adam for both networks, at two time scales."""

    generator_lr: float = 1e-4
    discriminator_lr: float = 4e-4
    beta1: float = 0.0
    beta2: float = 0.999
    discriminator_steps: int = 1  # to one of the generator
    decay_from: int | None = None  # the step from which both rates fall linearly to zero


@dataclass(frozen=True)
class Collapse:
    """When a run that will not recover is stopped: one of these held for `patience` steps in a row; 0 never stops.

    `won`: the discriminator's hinge loss is below it, so that it tells real from made without effort. `blind`: its
    answers to real and made differ by less. `uniform`: made images differ from each other by less than this share of
    what real ones do.
    """

    patience: int = 2_000
    won: float = 0.01
    blind: float = 1e-3
    uniform: float = 0.02


@dataclass(frozen=True)
class GanRecipe(Training):
    model: Networks = field(default_factory=Networks)
    data: Images = field(default_factory=Images)
    optim: TwoRates = field(default_factory=TwoRates)
    collapse: Collapse = field(default_factory=Collapse)
    average: float | None = None  # decay of a running mean of the generator's weights, which then makes the samples
    average_from: int = 0  # until then the mean is the generator itself
    sample_every: int = 1_000  # a sheet of the same latents each time
    graph: bool = False  # record a step as a CUDA graph and replay it; one process on one GPU
    # images in a step of the generator, over all processes and parts; None: as many as `batch`, which the
    # discriminator always gets of each kind
    made_batch: int | None = field(default=None, metadata={LATE: True})


# functions without arguments that return a GanRecipe
gan_recipes: Registry[GanRecipe] = Registry("GAN recipe")
