"""The rows of a comparison: a context of the zoo by its name, the paper's baseline, or breads without a ham."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hamburger.contexts import list_contexts
from hamburger.errors import UnknownNameError, did_you_mean
from hamburger.segmentation.recipe import SegmentationRecipe
from hamburger.training.recipe_io import apply

SPECIAL: dict[str, tuple[str, ...]] = {
    "baseline": ("model.context=none",),
    "none": ("model.context=none",),
    # Table 2's "without ham": the two linear maps, the norm and the skip alone
    "breads": ("model.context=nmf", "model.context_options.parts=lower,upper"),
    # flash kernels take at most 256 channels a head
    "sa-flash": ("model.context=sa", "model.context_options.heads=8"),
    # the n x n matrix in memory, as the paper's comparison had it: for small maps
    "sa-materialised": ("model.context=sa", "model.context_options.materialise=true"),
}


def variants(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Overrides by name; a context takes its own defaults, not the options that the recipe gives to another."""
    known = {**{name: (f"model.context={name}",) for name in list_contexts()}, **SPECIAL}
    for name in names:
        if name not in known:
            raise UnknownNameError(f"compare: no context '{name}'{did_you_mean(name, known)}")
    return {name: known[name] for name in names}


def model_options(name: str) -> dict[str, Any]:
    """The same as keywords of `create_model`."""
    overrides = variants([name])[name]
    model = apply(SegmentationRecipe(name=name), list(overrides)).model
    return {"context": model.context, "context_options": model.context_options}
