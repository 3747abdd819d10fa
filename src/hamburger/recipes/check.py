"""Whether a recipe can be run at all, asked before any work is done."""

from __future__ import annotations

from typing import Protocol

from hamburger.errors import OptionError, check_choice, check_count, check_flag, check_positive, check_seed
from hamburger.recipes.base import AdamOptim, Optim, Recipe, Training

PRECISIONS = ("32", "bf16", "fp16")
RESIDENT = ("auto", "yes", "no")
KEEP = ("best", "last")


def check_recipe(recipe: Recipe, *, processes: int = 1) -> None:
    """Raise OptionError on the first field whose value cannot be; `processes` share the batch."""
    call = f"recipe '{recipe.name}'"
    check_training(recipe, processes=processes)
    check_count(call, "eval_every", recipe.eval_every, least=1)
    check_count(call, "angles_every", recipe.angles_every, least=0)
    check_choice(call, "keep", recipe.keep, KEEP)
    check_positive(call, "bn_momentum", recipe.bn_momentum, most=1)
    _check_model(call, recipe)
    check_views(call, recipe.data)
    check_optim(call, recipe.optim)


def check_training(recipe: Training, *, processes: int = 1) -> None:
    """The part that all recipes share."""
    call = f"recipe '{recipe.name}'"
    check_count("train", "the number of processes (devices times nodes)", processes, least=1)
    for name in ("batch", "accumulate", "steps", "checkpoint_every", "log_every"):
        check_count(call, name, getattr(recipe, name), least=1)
    for name in ("sync_bn", "channels_last", "compile", "tensorboard"):
        check_flag(call, name, getattr(recipe, name))
    check_seed(call, recipe.seed)
    check_choice(call, "precision", recipe.precision, PRECISIONS)
    shares = processes * recipe.accumulate
    if recipe.batch % shares:
        raise OptionError(
            f"{call}: batch {recipe.batch} cannot be shared by {processes} processes in {recipe.accumulate} "
            f"accumulated parts; --set batch={-(-recipe.batch // shares) * shares}, a multiple of {shares}"
        )


def check_two_at_once(recipe: Training, *, processes: int) -> None:
    """Batch norm of a single image's features has nothing to compare them with."""
    shares = processes * recipe.accumulate
    if recipe.batch // shares < 2:
        raise OptionError(
            f"recipe '{recipe.name}': batch norm needs two images at once, and batch {recipe.batch} in {processes} "
            f"processes of {recipe.accumulate} accumulated parts is less; --set batch={2 * shares}"
        )


def _check_model(call: str, recipe: Recipe) -> None:
    check_count(call, "model.output_stride", recipe.model.output_stride, least=1)
    if recipe.start is not None and recipe.model.pretrained is not None:
        raise OptionError(
            f"{call}: start ({recipe.start}) replaces every weight, so model.pretrained ({recipe.model.pretrained}) "
            f"would be lost; --set one of them to none"
        )


class Views(Protocol):
    """How the images of a recipe are cut out."""

    @property
    def crop(self) -> int: ...
    @property
    def scales(self) -> tuple[float, float]: ...
    @property
    def flip(self) -> bool: ...
    @property
    def workers(self) -> int: ...
    @property
    def resident(self) -> str: ...


def check_views(call: str, data: Views) -> None:
    check_count(call, "data.crop", data.crop, least=1)
    check_count(call, "data.workers", data.workers, least=0)
    check_flag(call, "data.flip", data.flip)
    check_choice(call, "data.resident", data.resident, RESIDENT)
    low, high = data.scales
    for scale in (low, high):
        check_positive(call, "data.scales", scale)
    if low > high:
        raise OptionError(f"{call}: data.scales go from small to large, got {low:g},{high:g}")


def check_adam(call: str, optim: AdamOptim) -> None:
    check_positive(call, "optim.lr", optim.lr)
    for name in ("power", "weight_decay"):
        check_positive(call, f"optim.{name}", getattr(optim, name), zero=True)
    for name in ("beta1", "beta2"):
        check_positive(call, f"optim.{name}", getattr(optim, name), zero=True, most=0.99999)
    _check_both(call, optim)


def check_optim(call: str, optim: Optim) -> None:
    for name in ("lr", "power"):
        check_positive(call, f"optim.{name}", getattr(optim, name))
    for name in ("weight_decay", "bias_lr"):
        check_positive(call, f"optim.{name}", getattr(optim, name), zero=True)
    check_positive(call, "optim.momentum", optim.momentum, zero=True, most=0.9999)
    _check_both(call, optim)


def _check_both(call: str, optim: Optim | AdamOptim) -> None:
    check_count(call, "optim.warmup", optim.warmup, least=0)
    if optim.clip is not None:
        check_positive(call, "optim.clip", optim.clip)
