"""The three Hamburgers of the paper (Geng et al., ICLR 2021), as contexts."""

from __future__ import annotations

from typing import Any

from hamburger.layers.burger import Hamburger
from hamburger.layers.context.base import contexts


@contexts.register("nmf")
def nmf(channels: int, **options: Any) -> Hamburger:
    return Hamburger(channels, ham="nmf", **options)


@contexts.register("vq")
def vq(channels: int, **options: Any) -> Hamburger:
    return Hamburger(channels, ham="vq", **options)


@contexts.register("cd")
def cd(channels: int, **options: Any) -> Hamburger:
    return Hamburger(channels, ham="cd", **options)
