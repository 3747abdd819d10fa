"""The fields that all training recipes share, as frozen dataclasses, and checks that run before any work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from hamburger.errors import OptionError, check_choice, check_count, check_flag, check_positive, check_seed

LATE = "late"  # marks fields added later: at their default they do not change a recipe's digest


@dataclass(frozen=True)
class Optim:
    """SGD in three groups: weights (decayed), norms and gates (not), biases (not, at `bias_lr` times lr)."""

    lr: float = 9e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    bias_lr: float = 2.0
    power: float = 0.9  # of the poly schedule
    warmup: int = 0  # steps
    # upper bound on the norm of all gradients together; None: no clipping
    clip: float | None = field(default=None, metadata={LATE: True})


@dataclass(frozen=True)
class AdamOptim:
    """AdamW with the same schedule; without `weight_decay` it is Adam. A `power` of 0 keeps the rate constant."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0  # of weights, not of norms, gates and biases
    power: float = 0.9
    warmup: int = 0
    clip: float | None = field(default=None, metadata={LATE: True})


@dataclass(frozen=True)
class Training:
    """The fields of every recipe, whatever it trains."""

    name: str
    batch: int = 16  # the global batch, over all processes and micro-batches
    accumulate: int = 1
    steps: int = 30_000
    precision: str = "32"  # 32, bf16 or fp16
    sync_bn: bool = True
    channels_last: bool = False
    compile: bool = False
    checkpoint_every: int = 1_000
    log_every: int = 20
    tensorboard: bool = False
    seed: int = 0


class SupervisedTraining(Training):
    """The further fields of supervised recipes; the recipe dataclass of each task declares them."""

    model: Any  # options of the network, at least `context` and `context_options`
    data: Any  # at least `name`, `options`, `val_split` and `workers`
    optim: Any  # Optim (SGD) or AdamOptim
    eval_every: int
    keep: str


# -- checks before any work --------------------------------------------------------------------------------------------

PRECISIONS = ("32", "bf16", "fp16")
RESIDENT = ("auto", "yes", "no")
KEEP = ("best", "last")


def check_training(recipe: Training, *, processes: int = 1) -> None:
    """Raise OptionError on the first shared field whose value cannot work."""
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
            f"{call}: batch {recipe.batch} does not divide into {processes} processes times {recipe.accumulate} "
            f"micro-batches; --set batch={-(-recipe.batch // shares) * shares}, a multiple of {shares}"
        )


def check_two_at_once(recipe: Training, *, processes: int) -> None:
    """Raise where a micro-batch has one image: batch norm over a single value is always zero."""
    shares = processes * recipe.accumulate
    if recipe.batch // shares < 2:
        raise OptionError(
            f"recipe '{recipe.name}': batch norm needs two images at once, and batch {recipe.batch} in {processes} "
            f"processes of {recipe.accumulate} micro-batches is less; --set batch={2 * shares}"
        )


class Views(Protocol):
    """The fields of a recipe's data that say how images are cropped."""

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
