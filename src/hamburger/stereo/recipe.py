"""Stereo recipes: disparity from two images."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hamburger.errors import OptionError, check_choice, check_count, check_positive
from hamburger.insertion.insert import POSITION_BLIND
from hamburger.insertion.inserted import GATES
from hamburger.registry import Registry
from hamburger.stereo.model import check_stereo_options
from hamburger.training.recipe import AdamOptim, DataOptions, SupervisedTraining, check_supervised


@dataclass(frozen=True)
class StereoModel:
    """Keywords of `create_stereo`."""

    width: int = 32
    volume: str = "correlation"  # or "concatenation"
    groups: int = 8
    volume_width: int = 16
    max_disparity: int = 128
    context: str | None = "nmf"
    context_options: dict[str, Any] = field(default_factory=dict)
    place: str = "features"  # or "volume"
    gate: str | None = "zero"


@dataclass(frozen=True)
class StereoData(DataOptions):
    """A stereo set and the augmentation of its training split."""

    name: str = "planes"
    crop: tuple[int, int] = (256, 512)  # height, width
    flip: bool = False  # turn half of the pairs upside down
    photometric: float = 0.0  # strength of colour changes, the same for both images


@dataclass(frozen=True)
class StereoRecipe(SupervisedTraining):
    """Training of a stereo network."""

    task: str = "stereo"  # identifies a recipe.json
    model: StereoModel = field(default_factory=StereoModel)
    data: StereoData = field(default_factory=StereoData)
    optim: AdamOptim = field(default_factory=AdamOptim)
    eval_every: int = 1_000
    keep: str = "best"  # which weights become best.safetensors: the best on the validation split, or the last


# functions without arguments that return a StereoRecipe
stereo_recipes: Registry[StereoRecipe] = Registry("stereo recipe")


# -- recipes: the post on decomposed attention names this task ---------------------------------------------------------


@stereo_recipes.register("planes-tiny")
def planes_tiny() -> StereoRecipe:
    """The default: generated planes of 64 x 128, seconds on two cores.

    Device: CPU. Duration: seconds.
    """
    return StereoRecipe(
        name="planes-tiny",
        model=StereoModel(width=16, groups=4, volume_width=8, max_disparity=32),
        # the largest disparity the network can predict is one step of its volume, 4 pixels, below max_disparity
        data=StereoData(options={"max_disparity": 28, "length": 64}, crop=(64, 128), workers=0),
        optim=AdamOptim(lr=3e-3, warmup=10),
        batch=4,
        steps=150,
        eval_every=50,
        checkpoint_every=50,
    )


@stereo_recipes.register("planes")
def planes() -> StereoRecipe:
    """Generated planes in crops of 256 x 512, minutes on one GPU; the features have 64 x 128 positions.

    Device: GPU. Duration: minutes.
    """
    return StereoRecipe(
        name="planes",
        model=StereoModel(width=64),
        data=StereoData(
            options={"height": 288, "width": 576, "planes": 8, "max_disparity": 124}, flip=True, photometric=0.2
        ),
        optim=AdamOptim(warmup=100),
        batch=16,
        steps=2_000,
        precision="bf16",
        eval_every=1_000,
        checkpoint_every=500,
    )


@stereo_recipes.register("sceneflow")
def sceneflow() -> StereoRecipe:
    """SceneFlow as cost-volume networks usually train on it: 10 epochs, batches of 12 crops, constant learning rate.

    Device: GPU.
    """
    base = planes()
    return replace(
        base,
        name="sceneflow",
        model=replace(base.model, volume_width=32, max_disparity=192),
        data=StereoData(name="sceneflow"),
        optim=AdamOptim(power=0.0),
        batch=12,
        steps=29_500,
        eval_every=5_900,
        checkpoint_every=1_000,
    )


# -- checks ------------------------------------------------------------------------------------------------------------


def check_stereo_recipe(recipe: StereoRecipe, *, processes: int = 1) -> None:
    """Raise OptionError on the first invalid field. `processes` share the batch."""
    call = check_supervised(recipe, processes=processes)
    check_choice(call, "task", recipe.task, ("stereo",))
    if recipe.channels_last:
        raise OptionError(f"{call}: channels_last does not support volumes, which have five axes; leave it false")
    model = recipe.model
    check_stereo_options(call, **asdict(model))
    if model.gate is not None:
        check_choice(call, "model.gate", model.gate, GATES)
    if model.place == "volume" and model.context is not None and model.context not in POSITION_BLIND:
        raise OptionError(
            f"{call}: '{model.context}' uses neighbours in a 2-D map, which a volume is not; --set "
            f"model.place=features, or use one of {', '.join(sorted(POSITION_BLIND))}"
        )
    for side in recipe.data.crop:
        check_count(call, "data.crop", side, least=1)
    check_positive(call, "data.photometric", recipe.data.photometric, zero=True, most=0.9)
