"""Whether a stereo recipe can be run at all, asked before any work is done."""

from __future__ import annotations

from hamburger.errors import OptionError, check_choice, check_count, check_flag, check_positive
from hamburger.insertion.place import GATES
from hamburger.insertion.plan import POSITION_BLIND
from hamburger.models.stereo.create import check_network
from hamburger.recipes.check import KEEP, RESIDENT, check_adam, check_training
from hamburger.recipes.stereo_base import StereoRecipe


def check_stereo_recipe(recipe: StereoRecipe, *, processes: int = 1) -> None:
    """Raise OptionError on the first field whose value cannot be; `processes` share the batch."""
    call = f"recipe '{recipe.name}'"
    check_training(recipe, processes=processes)
    check_choice(call, "task", recipe.task, ("stereo",))
    check_count(call, "eval_every", recipe.eval_every, least=1)
    check_choice(call, "keep", recipe.keep, KEEP)
    if recipe.channels_last:
        raise OptionError(f"{call}: volumes have five axes, which channels_last has no order for; leave it false")
    _check_model(call, recipe)
    for side in recipe.data.crop:
        check_count(call, "data.crop", side, least=1)
    check_flag(call, "data.flip", recipe.data.flip)
    check_positive(call, "data.photometric", recipe.data.photometric, zero=True, most=0.9)
    check_count(call, "data.workers", recipe.data.workers, least=0)
    check_choice(call, "data.resident", recipe.data.resident, RESIDENT)
    check_adam(call, recipe.optim)


def _check_model(call: str, recipe: StereoRecipe) -> None:
    model = recipe.model
    check_network(
        call,
        width=model.width,
        volume=model.volume,
        groups=model.groups,
        volume_width=model.volume_width,
        max_disparity=model.max_disparity,
        place=model.place,
    )
    if model.gate is not None:
        check_choice(call, "model.gate", model.gate, GATES)
    if model.place == "volume" and model.context is not None and model.context not in POSITION_BLIND:
        raise OptionError(
            f"{call}: '{model.context}' looks at neighbours in a map, and a volume is none; --set "
            f"model.place=features, or a context of {', '.join(sorted(POSITION_BLIND))}"
        )
