"""The three Hamburgers of the paper (Geng et al., ICLR 2021), as contexts.

Where no rank is given it follows the width as in the paper, d = 8 r with r at least 8 (section 3.2): 64 at the 512
channels of Table 3. A rank as large as the width would not reduce anything.
"""

from __future__ import annotations

from typing import Any

from hamburger.contexts.common import contexts
from hamburger.errors import check_count
from hamburger.layers.burger import Hamburger


@contexts.register("nmf")
def nmf(channels: int, **options: Any) -> Hamburger:
    return _burger(channels, "nmf", options)


@contexts.register("vq")
def vq(channels: int, **options: Any) -> Hamburger:
    return _burger(channels, "vq", options)


@contexts.register("cd")
def cd(channels: int, **options: Any) -> Hamburger:
    return _burger(channels, "cd", options)


def _burger(channels: int, ham: str, options: dict[str, Any]) -> Hamburger:
    inner = options.get("inner")
    width = channels if inner is None else inner
    check_count("Hamburger", "channels" if inner is None else "inner", width, least=1)
    return Hamburger(channels, ham=ham, **{"rank": max(8, width // 8), **options})
