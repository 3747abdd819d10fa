"""Whether a detection recipe can be run at all, asked before any work is done."""

from __future__ import annotations

from hamburger.errors import OptionError, check_choice, check_count, check_flag
from hamburger.recipes.check import KEEP, check_optim, check_training, check_views
from hamburger.recipes.detect_base import DetectionRecipe

COUNTS = ("size", "max_size", "anchor", "channels", "hidden", "sampled", "proposals")


def check_detection_recipe(recipe: DetectionRecipe, *, processes: int = 1) -> None:
    """Raise OptionError on the first field whose value cannot be; `processes` share the batch."""
    call = f"recipe '{recipe.name}'"
    check_training(recipe, processes=processes)
    check_choice(call, "task", recipe.task, ("detection",))
    check_count(call, "eval_every", recipe.eval_every, least=1)
    check_choice(call, "keep", recipe.keep, KEEP)
    if recipe.compile:
        raise OptionError(f"{call}: the number of boxes changes from step to step, compile=true would not end")
    for name in COUNTS:
        check_count(call, f"model.{name}", getattr(recipe.model, name), least=1)
    if recipe.model.pretrained is None and recipe.model.norm == "frozen":
        raise OptionError(
            f"{call}: frozen norms are those of pretrained weights; --set model.pretrained=FILE, or model.norm=batch"
        )
    check_views(call, recipe.data)
    check_flag(call, "data.pad", recipe.data.pad)
    check_optim(call, recipe.optim)
