"""Whether a classification recipe can be run at all, asked before any work is done."""

from __future__ import annotations

from hamburger.errors import check_choice, check_count, check_flag
from hamburger.models.classifier import STEMS
from hamburger.recipes.check import KEEP, RESIDENT, check_optim, check_training, check_two_at_once
from hamburger.recipes.class_base import ClassRecipe


def check_class_recipe(recipe: ClassRecipe, *, processes: int = 1) -> None:
    """Raise OptionError on the first field whose value cannot be; `processes` share the batch."""
    call = f"recipe '{recipe.name}'"
    check_training(recipe, processes=processes)
    check_choice(call, "task", recipe.task, ("classes",))
    check_count(call, "eval_every", recipe.eval_every, least=1)
    check_choice(call, "keep", recipe.keep, KEEP)
    check_two_at_once(recipe, processes=processes)
    check_choice(call, "model.stem", recipe.model.stem, STEMS)
    check_flag(call, "model.pretrained", recipe.model.pretrained)
    check_count(call, "data.size", recipe.data.size, least=1)
    check_count(call, "data.workers", recipe.data.workers, least=0)
    check_flag(call, "data.flip", recipe.data.flip)
    check_choice(call, "data.resident", recipe.data.resident, RESIDENT)
    check_optim(call, recipe.optim)
