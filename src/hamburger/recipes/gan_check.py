"""Whether a GAN recipe can be run at all, asked before any work is done."""

from __future__ import annotations

from hamburger.errors import OptionError, check_choice, check_count, check_flag, check_positive
from hamburger.gan import list_gans
from hamburger.gan.create import create_gan
from hamburger.recipes.check import RESIDENT, check_training, check_two_at_once
from hamburger.recipes.gan_base import GanRecipe
from hamburger.registry import check_options

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
