"""A run as a value: frozen dataclasses, built by functions, changed by dotted overrides, stored as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hamburger.registry import Registry

LATE = "late"  # marks fields that came later: unless they are set, digests are those of recipes without them


@dataclass(frozen=True)
class Model:
    """Keywords of `create_model`."""

    name: str = "hamnet"
    backbone: str = "resnet50"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    output_stride: int = 16
    context: str | None = "nmf"
    context_options: dict[str, Any] = field(default_factory=dict)
    head_options: dict[str, Any] = field(default_factory=dict)
    pretrained: str | None = None  # a file for the backbone, or "timm"


@dataclass(frozen=True)
class Data:
    name: str = "patchwork"
    options: dict[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    val_split: str = "val"
    crop: int = 513
    scales: tuple[float, float] = (0.5, 2.0)
    flip: bool = True
    workers: int = 4
    resident: str = "auto"  # keep the whole set on the device: "auto", "yes" or "no"


@dataclass(frozen=True)
class Optim:
    """SGD in three groups: weights (decayed), norms and gates (not), biases (not, at `bias_lr` times lr)."""

    lr: float = 9e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    bias_lr: float = 2.0
    power: float = 0.9  # of the poly schedule
    warmup: int = 0  # steps
    # the most that the norm of all gradients together may be; a longer one is shortened. None: as it is
    clip: float | None = field(default=None, metadata={LATE: True})


@dataclass(frozen=True)
class AdamOptim:
    """AdamW, and the same schedule; without `weight_decay` it is Adam. A `power` of 0 keeps the rate."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0  # of weights, not of norms, gates and biases
    power: float = 0.9
    warmup: int = 0
    clip: float | None = field(default=None, metadata={LATE: True})


@dataclass(frozen=True)
class Training:
    """What every run has, whatever it trains."""

    name: str
    batch: int = 16  # over all processes and accumulated parts
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
    """What the recipe of a supervised task has besides; a dataclass that names these fields derives from it."""

    model: Any  # what the task builds its network from, with `context` and `context_options` at least
    data: Any  # with `name`, `options`, `val_split` and `workers` at least
    optim: Any  # Optim or AdamOptim: which optimiser it is, its settings say
    eval_every: int
    keep: str


@dataclass(frozen=True)
class Recipe(SupervisedTraining):
    """A segmentation network."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=Optim)
    bn_momentum: float = 3e-4
    eval_every: int = 2_000
    start: str | None = None  # a run or weights to begin from
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last
    # compare the gradients of the hams by several strategies every so many steps; 0: never. It changes no weight
    angles_every: int = field(default=0, metadata={LATE: True})


# functions without arguments that return a Recipe
recipes: Registry[Recipe] = Registry("recipe")
