"""The three Hamburgers of the paper (Geng et al., ICLR 2021), as contexts.

Their options and defaults are those of `Hamburger`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hamburger.contexts.common import contexts
from hamburger.layers.burger import Hamburger

NAMES = ("nmf", "vq", "cd")


@contexts.register("nmf")
def nmf(channels: int, **options: Any) -> Hamburger:
    return Hamburger(channels, ham="nmf", **options)


@contexts.register("vq")
def vq(channels: int, **options: Any) -> Hamburger:
    return Hamburger(channels, ham="vq", **options)


@contexts.register("cd")
def cd(channels: int, **options: Any) -> Hamburger:
    return Hamburger(channels, ham="cd", **options)


def with_authors_version(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the named context, with `version="v1"` for a Hamburger unless they give another version.

    For networks that follow the authors' code, whose Hamburger ends in a ReLU.
    """
    return {"version": "v1", **options} if name in NAMES else dict(options)
