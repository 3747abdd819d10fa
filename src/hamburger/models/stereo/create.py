"""A stereo network by the names of its parts, and its weights in a file that says how to build it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hamburger.errors import OptionError, check_choice, check_count
from hamburger.insertion import insert_context
from hamburger.models.create import plain
from hamburger.models.stereo.network import COARSEST, StereoNet

VOLUMES = ("correlation", "concatenation")
PLACES = {"features": "features.body", "volume": "aggregation.coarse"}
EXAMPLE = (64, 128)  # pixels by which channels and positions are found


def create_stereo(
    *,
    width: int = 32,
    volume: str = "correlation",
    groups: int = 8,
    volume_width: int = 16,
    max_disparity: int = 128,
    context: str | None = None,
    context_options: Mapping[str, Any] | None = None,
    place: str = "features",
    gate: str | None = "zero",
) -> StereoNet:
    """left b 3 h w, right b 3 h w   ->   disparity b h w in pixels, for any h and w.

    - `width`: channels of the features, which both images share
    - `volume`: "correlation" of `groups` groups of channels, or "concatenation"; `volume_width` channels are aggregated
    - `max_disparity`: a multiple of 16; what lies beyond is neither found nor trained on
    - `context`, `context_options`, `gate`: a name of the zoo, put in by `insert_context`
    - `place`: "features", a map at a quarter of the resolution, for any context; or "volume", where every (disparity,
      y, x) of the volume at an eighth is one position, for contexts that look at no neighbours
    """
    config = {key: plain(value) for key, value in locals().items()}
    call = "create_stereo"
    check_choice(call, "volume", volume, VOLUMES)
    check_choice(call, "place", place, PLACES)
    for option, value in (("width", width), ("groups", groups), ("volume_width", volume_width)):
        check_count(call, option, value, least=1)
    check_count(call, "max_disparity", max_disparity, least=COARSEST)
    if max_disparity % COARSEST:
        raise OptionError(
            f"{call}: max_disparity must be a multiple of {COARSEST}, got {max_disparity}; take "
            f"{-(-max_disparity // COARSEST) * COARSEST}"
        )
    if width % groups:
        raise OptionError(f"{call}: {groups} groups do not divide width {width}; choose either to fit")
    net = StereoNet(
        width=width,
        volume=volume,
        groups=groups,
        volume_width=volume_width,
        max_disparity=max_disparity,
        config=config,
    )
    if context is not None:
        example = tuple(torch.zeros(1, 3, *EXAMPLE) for _ in range(2))
        wanted = (context, {**(context_options or {}), "layout": "channels"})
        insert_context(net, {PLACES[place]: wanted}, gate=gate, example=example)
    return net
