"""A stereo network by the names of its parts, and its weights in a file that says how to build it again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from hamburger.errors import CheckpointError, HamburgerError, OptionError, check_choice, check_count
from hamburger.insertion import insert_context
from hamburger.models.create import plain
from hamburger.models.info import Info
from hamburger.models.stereo.network import COARSEST, StereoNet
from hamburger.models.stored import read_stored, write_stored

TASK = "stereo"
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
    own: dict[str, Any] = {"width": width, "volume": volume, "groups": groups, "volume_width": volume_width}
    check_network("create_stereo", **own, max_disparity=max_disparity, place=place)
    net = StereoNet(**own, max_disparity=max_disparity, config=config)
    if context is not None:
        example = tuple(torch.zeros(1, 3, *EXAMPLE) for _ in range(2))
        wanted = (context, {**(context_options or {}), "layout": "channels"})
        insert_context(net, {PLACES[place]: wanted}, gate=gate, example=example)
    return net


def check_network(
    call: str, *, width: int, volume: str, groups: int, volume_width: int, max_disparity: int, place: str
) -> None:
    """Everything that can be wrong without a context."""
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


def save_stereo(path: str | os.PathLike[str], net: StereoNet, info: Info, *, durable: bool = True) -> None:
    """Write the network to a file that is either complete or not there."""
    if net.config is None:
        raise CheckpointError(
            "save_stereo: this network was put together by hand, and nothing says how to build it again; build it with "
            "create_stereo, or save its state_dict() yourself"
        )
    write_stored(path, net, replace(info, model={"task": TASK, **net.config}), durable=durable)


def load_stereo(path: str | os.PathLike[str]) -> tuple[StereoNet, Info]:
    """The network of a file, on the CPU and in evaluation mode, and what it was trained on."""
    info, tensors = read_stored("load_stereo", path, TASK)
    options = {key: value for key, value in info.model.items() if key != "task"}
    try:
        with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten: leave the caller's draws alone
            net = create_stereo(**options)
        net.load_state_dict(tensors)
    except (HamburgerError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"load_stereo: {path} is of a network that cannot be built here: {error}") from error
    net.info = info
    return net.eval(), info
