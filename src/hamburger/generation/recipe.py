"""GAN recipes: fields, those of the papers, shorter ones for small data sets, and their checks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hamburger.errors import OptionError, check_choice, check_count, check_flag, check_positive
from hamburger.generation.model import create_gan, list_gans
from hamburger.registry import Registry, check_options
from hamburger.training.recipe import (
    ADDED_LATER,
    Training,
    check_data,
    check_training,
    check_two_at_once,
)


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
    discriminator_steps: int = 1  # per generator step
    decay_from: int | None = None  # the step from which both rates decay linearly to zero


@dataclass(frozen=True)
class CollapseRule:
    """Stops a run that will not recover: if one sign holds for `patience` steps in a row. 0 never stops.

    `won`: the discriminator's hinge loss is below this, so it separates real from generated images perfectly. `blind`:
    its mean scores of real and generated images differ by less than this. `uniform`: the variation of generated images
    is below this fraction of that of real images.
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
    collapse: CollapseRule = field(default_factory=CollapseRule)
    average: float | None = None  # decay of the generator's weight average, which then makes the samples
    average_from: int = 0  # until this step the average is a copy of the generator
    sample_every: int = 1_000  # write a grid of samples, from the same latents each time
    graph: bool = False  # capture a step as a CUDA graph and replay it; one process on one GPU
    # global batch of a generator step; None: `batch`, which is also the number of real and of generated images in a
    # discriminator step
    made_batch: int | None = field(default=None, metadata={ADDED_LATER: True})


# functions without arguments that return a GanRecipe
gan_recipes: Registry[GanRecipe] = Registry("GAN recipe")


# -- recipes -----------------------------------------------------------------------------------------------------------

# the papers' batch-norm momentum of 0.001 suits 2,000,000 steps; short runs need a larger one
SHORT_NORM = 0.01


def _create_paper_recipe(
    name: str, *, batch: int, steps: int, made_batch: int | None = None, optim: GanOptim | None = None
) -> GanRecipe:
    """ImageNet at 128 pixels. The papers use neither a weight average nor truncation.

    The second beta of all but SNGAN is the framework's default in their code; SAGAN's paper says 0.9.
    """
    return GanRecipe(
        name=name,
        model=GanModel(name=name, resolution=128),
        data=GanData(name="imagenet"),
        optim=optim or GanOptim(),
        batch=batch,
        made_batch=made_batch,
        steps=steps,
        # TPUs, on which all but SNGAN were trained, multiply in bfloat16; SNGAN was trained in float32
        precision="bf16",
        channels_last=True,
        checkpoint_every=5_000,
        sample_every=5_000,
        log_every=100,
    )


@gan_recipes.register("sngan")
def sngan() -> GanRecipe:
    """Miyato & Koyama: ImageNet at 128 pixels, 450,000 steps, each with five of the discriminator (64 real and 64
    generated images) and one of the generator (128 images). No context.

    The global batch over four GPUs is from memory of the paper; its configuration file has 16 and 32 images per GPU.

    Device: GPU.
    """
    optim = GanOptim(generator_lr=2e-4, discriminator_lr=2e-4, beta2=0.9, discriminator_steps=5, decay_from=400_000)
    return _create_paper_recipe("sngan", batch=64, made_batch=128, steps=450_000, optim=optim)


@gan_recipes.register("sagan")
def sagan() -> GanRecipe:
    """Zhang et al.: 1,000,000 steps of 256 images, attention at 32 x 32.

    Device: GPU.
    """
    return _create_paper_recipe("sagan", batch=256, steps=1_000_000)


@gan_recipes.register("ylg")
def ylg() -> GanRecipe:
    """Daras et al.: 1,000,000 steps of 1,024 images, sparse attention at 32 x 32; its batch is inferred.

    HamGAN-strong uses this batch and claims YLG's settings.

    Device: GPU.
    """
    return _create_paper_recipe("ylg", batch=1024, steps=1_000_000)


@gan_recipes.register("hamgan-baby")
def hamgan_baby() -> GanRecipe:
    """Table 6: ImageNet at 128 pixels, 2,000,000 steps of 256 images, as SAGAN was trained.

    Device: GPU.
    """
    return _create_paper_recipe("hamgan-baby", batch=256, steps=2_000_000)


@gan_recipes.register("hamgan-strong")
def hamgan_strong() -> GanRecipe:
    """Table 6: 1,000,000 steps of 1,024 images, as YLG was trained; on few GPUs with --set accumulate=...

    Device: GPU.
    """
    return _create_paper_recipe("hamgan-strong", batch=1024, steps=1_000_000)


@gan_recipes.register("cifar10")
def cifar10() -> GanRecipe:
    """CIFAR-10 at 32 pixels, minutes on one GPU; the paper has no such row. SAGAN's rates, SNGAN's betas: with equal
    rates and one discriminator step, the discriminator cannot separate real from generated after some thousand steps.

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
    """Classes of Tiny-ImageNet at 64 pixels, on one GPU. With 5,000 images the discriminator soon overfits.

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
    """Coloured figures at 32 pixels, generated on the fly: two minutes on two idle CPU cores.

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
                "context_at": 8,  # both networks have 64 channels there, which YLG's eight heads need
                "norm_momentum": 0.1,
            },
        ),
        data=GanData(name="figures", workers=0),
        optim=GanOptim(generator_lr=2e-3, discriminator_lr=2e-3, beta2=0.9),  # chosen by eye among 0.5e-3 ... 2e-3
        collapse=CollapseRule(patience=100),
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
    """Your own images, one folder per class, at 64 pixels.

    Device: GPU.
    """
    return replace(tiny_imagenet(), name="folder", data=GanData(name="folder", flip=True))


# -- checks ------------------------------------------------------------------------------------------------------------

RECIPE_FIELDS = {"name", "resolution", "num_classes", "latent", "width", "context", "context_options"}


def check_gan_recipe(recipe: GanRecipe, *, processes: int = 1) -> None:
    """Raise OptionError for the first invalid field; `processes` share the global batch."""
    call = f"recipe '{recipe.name}'"
    check_training(recipe, processes=processes)
    check_count(call, "sample_every", recipe.sample_every, least=1)
    check_count(call, "average_from", recipe.average_from, least=0)
    if recipe.average is not None:
        check_positive(call, "average", recipe.average, most=1)
    check_flag(call, "graph", recipe.graph)
    if recipe.graph and (processes > 1 or recipe.precision == "fp16"):
        got = f"{processes} processes" if processes > 1 else "precision fp16, whose loss scale is set on the CPU"
        raise OptionError(f"{call}: graph needs one process and precision bf16 or 32, got {got}; --set graph=false")
    check_two_at_once(recipe, processes=processes)
    if recipe.made_batch is not None:
        check_count(call, "made_batch", recipe.made_batch, least=1)
        shares = processes * recipe.accumulate
        if recipe.made_batch % shares or recipe.made_batch // shares < 2:
            enough = max(2, -(-recipe.made_batch // shares)) * shares
            raise OptionError(
                f"{call}: made_batch {recipe.made_batch} cannot be split over {processes} processes and "
                f"{recipe.accumulate} micro-batches of two images or more; --set made_batch={enough}"
            )
    check_choice(call, "model.name", recipe.model.name, list_gans())
    check_options(f"{call}: model.options", create_gan, recipe.model.options)
    if misplaced := sorted(RECIPE_FIELDS & recipe.model.options.keys()):
        raise OptionError(f"{call}: {misplaced[0]} has its own field; --set model.{misplaced[0]}=... instead")
    check_data(call, recipe.data)
    if "size" in recipe.data.options:
        raise OptionError(f"{call}: data.options.size has its own field; --set model.resolution=... instead")
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
                f"{call}: optim.decay_from must be below {recipe.steps}, the number of steps, got {optim.decay_from}; "
                f"lower it, or --set optim.decay_from=none"
            )
    check_count(call, "collapse.patience", recipe.collapse.patience, least=0)
    for name in ("won", "blind", "uniform"):
        check_positive(call, f"collapse.{name}", getattr(recipe.collapse, name), zero=True)
