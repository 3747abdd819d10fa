"""The rows of a comparison of GANs: the same networks and budget, only what stands at the context's place differs."""

from __future__ import annotations

from collections.abc import Iterable

from hamburger.errors import UnknownNameError, did_you_mean
from hamburger.gan.context import blocks
from hamburger.layers.context import list_contexts

NONE = "none"


def gan_variants(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Overrides by name: "none", "sagan", "ylg", "hamgan", or any context of the zoo with its own defaults."""
    known = sorted({NONE, *blocks, *list_contexts()})
    chosen = list(names)
    for name in chosen:
        if name not in known:
            raise UnknownNameError(f"gan grid: no context '{name}'{did_you_mean(name, known)}")
    # the options that a recipe gives to one context mean nothing to another
    return {name: (f"model.context={name}", "model.context_options=none") for name in chosen}
