"""GAN recipes: the paper's, and shorter ones for small data sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hamburger.contexts import list_contexts
from hamburger.errors import (
    OptionError,
    UnknownNameError,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    did_you_mean,
)
from hamburger.generation.networks import list_gans
from hamburger.generation.networks.context import blocks
from hamburger.generation.networks.create import create_gan, paper_settings
from hamburger.registry import Registry, check_options
from hamburger.training.recipe import LATE, RESIDENT, Training, check_training, check_two_at_once


@dataclass(frozen=True)
class GanModel:
    """Keywords of `create_gan`; `options` are those that have no field here, such as `norm_momentum`."""

    name: str = "hamgan"
    resolution: int = 128
    latent: int = 128
    width: int = 64
    context: str | None = "own"  # "own" is that of the named paper
    context_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GanData:
    name: str = "figures"
    options: dict[str, Any] = field(default_factory=dict)
    split: str = "train"
    flip: bool = False  # mirror half of the images
    workers: int = 4
    resident: str = "auto"  # keep the whole set on the device: "auto", "yes" or "no"


@dataclass(frozen=True)
class GanOptim:
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
    model: GanModel = field(default_factory=GanModel)
    data: GanData = field(default_factory=GanData)
    optim: GanOptim = field(default_factory=GanOptim)
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


# ----------------------------------------------------------------------------------------------------------------------
# The paper's GAN recipes, and shorter ones for sets that fit a small machine.


# running statistics of batch norm at the paper's rate of 0.001 follow 2,000,000 steps; short runs need more
SHORT_NORM = 0.01


def _paper(name: str) -> GanRecipe:
    settings = paper_settings(name)
    beta1, beta2 = settings.betas
    return GanRecipe(
        name=name,
        model=GanModel(name=name, resolution=128),
        data=GanData(name="imagenet"),
        optim=GanOptim(
            generator_lr=settings.generator_rate,
            discriminator_lr=settings.discriminator_rate,
            beta1=beta1,
            beta2=beta2,
            discriminator_steps=settings.discriminator_steps,
            decay_from=settings.decay_from,
        ),
        batch=settings.batch,
        made_batch=settings.made_batch,
        steps=settings.steps,
        # as TPUs, on which all but SNGAN were trained, take bfloat16 operands for their products; SNGAN's was float32
        precision="bf16",
        channels_last=True,
        checkpoint_every=5_000,
        sample_every=5_000,
        log_every=100,
    )


@gan_recipes.register("sngan")
def sngan() -> GanRecipe:
    """Miyato & Koyama: ImageNet at 128 pixels, 450,000 steps, five of the discriminator (64 real, 64 made) to one of
    the generator (128 made). Without a context.

    Device: GPU.
    """
    return _paper("sngan")


@gan_recipes.register("sagan")
def sagan() -> GanRecipe:
    """Zhang et al.: 1,000,000 steps of 256 images, attention at 32 x 32.

    Device: GPU.
    """
    return _paper("sagan")


@gan_recipes.register("ylg")
def ylg() -> GanRecipe:
    """Daras et al.: 1,000,000 steps of 1,024 images, sparse attention at 32 x 32; its batch is inferred.

    Device: GPU.
    """
    return _paper("ylg")


@gan_recipes.register("hamgan-baby")
def hamgan_baby() -> GanRecipe:
    """Table 6: ImageNet at 128 pixels, 2,000,000 steps of 256 images, as SAGAN was trained.

    Device: GPU.
    """
    return _paper("hamgan-baby")


@gan_recipes.register("hamgan-strong")
def hamgan_strong() -> GanRecipe:
    """Table 6: 1,000,000 steps of 1,024 images, as YLG was trained; on few GPUs with --set accumulate=...

    Device: GPU.
    """
    return _paper("hamgan-strong")


@gan_recipes.register("cifar10")
def cifar10() -> GanRecipe:
    """CIFAR-10 at 32 pixels, minutes on one GPU; the paper has no such row. SAGAN's rates, SNGAN's betas: at equal
    rates, one step to one, the discriminator cannot tell real from made after some thousand steps.

    Device: GPU. Duration: minutes.
    """
    return GanRecipe(
        name="cifar10",
        model=GanModel(resolution=32, options={"norm_momentum": SHORT_NORM}),
        data=GanData(name="cifar10", flip=True),
        optim=GanOptim(generator_lr=1e-4, discriminator_lr=4e-4, beta2=0.9),
        batch=64,
        steps=30_000,
        precision="bf16",
        channels_last=True,
        average=0.999,
        average_from=1_000,
        checkpoint_every=5_000,
        sample_every=2_500,
        log_every=100,
    )


@gan_recipes.register("tiny-imagenet")
def tiny_imagenet() -> GanRecipe:
    """Classes of Tiny-ImageNet at 64 pixels, on one GPU. With 5,000 images a discriminator soon knows them by heart.

    Device: GPU. Duration: minutes.
    """
    return replace(
        cifar10(),
        name="tiny-imagenet",
        model=GanModel(resolution=64, width=32, options={"norm_momentum": SHORT_NORM}),
        data=GanData(name="tiny-imagenet", flip=True),
        steps=15_000,
    )


@gan_recipes.register("figures")
def figures() -> GanRecipe:
    """The embedded default: coloured figures of 32 x 32, two minutes on two idle cores.

    Device: CPU. Duration: 2 min.
    """
    return GanRecipe(
        name="figures",
        model=GanModel(
            resolution=32,
            latent=32,
            width=16,
            options={
                "generator_multipliers": [4, 4, 4, 1],
                "discriminator_multipliers": [1, 4, 4, 4],
                "discriminator_downs": 3,
                "context_at": 8,  # where both networks have the 64 channels that YLG's eight heads need
                "norm_momentum": 0.1,
            },
        ),
        data=GanData(name="figures", workers=0),
        optim=GanOptim(generator_lr=2e-3, discriminator_lr=2e-3, beta2=0.9),  # by eye, of 0.5e-3 ... 2e-3
        collapse=Collapse(patience=100),
        batch=32,
        steps=400,
        average=0.98,
        average_from=50,
        checkpoint_every=100,
        sample_every=50,
        log_every=10,
    )


@gan_recipes.register("folder")
def folder() -> GanRecipe:
    """A person's own pictures, one directory per class, at 64 pixels.

    Device: GPU.
    """
    return replace(tiny_imagenet(), name="folder", data=GanData(name="folder", flip=True))


# ----------------------------------------------------------------------------------------------------------------------
# Whether a GAN recipe can be run at all, asked before any work is done.


FIELDS = {"name", "resolution", "num_classes", "latent", "width", "context", "context_options"}


def check_gan_recipe(recipe: GanRecipe, *, processes: int = 1) -> None:
    """Raise OptionError on the first field whose value cannot be; `processes` share the batch."""
    call = f"recipe '{recipe.name}'"
    check_training(recipe, processes=processes)
    check_count(call, "sample_every", recipe.sample_every, least=1)
    check_count(call, "average_from", recipe.average_from, least=0)
    if recipe.average is not None:
        check_positive(call, "average", recipe.average, most=1)
    check_flag(call, "graph", recipe.graph)
    if recipe.graph and (processes > 1 or recipe.precision == "fp16"):
        what = f"{processes} processes" if processes > 1 else "precision fp16, whose scale is decided on the host"
        raise OptionError(
            f"{call}: graph records the step of one process and of bf16 or 32, got {what}; --set graph=false"
        )
    check_two_at_once(recipe, processes=processes)
    if recipe.made_batch is not None:
        check_count(call, "made_batch", recipe.made_batch, least=1)
        shares = processes * recipe.accumulate
        if recipe.made_batch % shares or recipe.made_batch // shares < 2:
            enough = max(2, -(-recipe.made_batch // shares)) * shares
            raise OptionError(
                f"{call}: made_batch {recipe.made_batch} cannot be shared by {processes} processes in "
                f"{recipe.accumulate} accumulated parts of two images or more; --set made_batch={enough}"
            )
    _check_model(call, recipe)
    check_count(call, "data.workers", recipe.data.workers, least=0)
    check_flag(call, "data.flip", recipe.data.flip)
    check_choice(call, "data.resident", recipe.data.resident, RESIDENT)
    optim = recipe.optim
    for name in ("generator_lr", "discriminator_lr"):
        check_positive(call, f"optim.{name}", getattr(optim, name))
    for name in ("beta1", "beta2"):
        check_positive(call, f"optim.{name}", getattr(optim, name), zero=True, most=0.99999)
    check_count(call, "optim.discriminator_steps", optim.discriminator_steps, least=1)
    if optim.decay_from is not None:
        check_count(call, "optim.decay_from", optim.decay_from, least=0)
        if optim.decay_from >= recipe.steps:
            raise OptionError(
                f"{call}: optim.decay_from {optim.decay_from} lies behind the last of {recipe.steps} steps; lower it, "
                f"or --set optim.decay_from=none"
            )
    check_count(call, "collapse.patience", recipe.collapse.patience, least=0)
    for name in ("won", "blind", "uniform"):
        check_positive(call, f"collapse.{name}", getattr(recipe.collapse, name), zero=True)


def _check_model(call: str, recipe: GanRecipe) -> None:
    check_choice(call, "model.name", recipe.model.name, list_gans())
    check_options(f"{call}: model.options", create_gan, recipe.model.options)
    taken = sorted(FIELDS & recipe.model.options.keys())
    if taken:
        raise OptionError(f"{call}: {taken[0]} has a field of its own; --set model.{taken[0]}=... instead")


# ----------------------------------------------------------------------------------------------------------------------
# The rows of a comparison of GANs: the same networks and budget, only what stands at the context's place differs.


NONE = "none"


def gan_variants(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Overrides by name: "none", "sagan", "ylg", "hamgan", or any context of the zoo with its own defaults."""
    known = sorted({NONE, *blocks, *list_contexts()})
    chosen = list(names)
    for name in chosen:
        if name not in known:
            raise UnknownNameError(f"gan grid: no context '{name}'{did_you_mean(name, known)}")
    # the options that a recipe gives to one context mean nothing to another
    return {name: (f"model.context={name}", "model.context_options=none") for name in chosen}
