"""How a stereo network looks to other programs."""

from __future__ import annotations

from torch import Tensor

from hamburger.engine.graph import Graph, by_number

NEAR = 0.05  # pixels by which a disparity may be off and be the same


def same_disparity(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours - theirs).abs() <= NEAR


DEPTH = Graph(
    size=(256, 512),
    inputs=("left", "right"),
    outputs=("disparity",),
    judge=by_number(same_disparity),
    differ="disparities",
    alike=f"within {NEAR} px of each other",
    free=("batch",),
    fixed="the images are filled up to multiples of 16 inside, and the volume is as wide as they are; write a file for "
    "each size with --size height,width",
)
