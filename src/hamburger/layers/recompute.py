"""Gradient checkpointing of layers that start from bases which every training step moves.

`torch.utils.checkpoint` and its relatives call a layer a second time, inside the backward pass. That call has to start
from the bases of the first one, and must not move them again. Draws need nothing here: checkpointing restores the
state of torch's generator, unless it is called with `preserve_rng_state=False`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from hamburger.errors import RecomputationError
from hamburger.tensors import is_recomputing

CALLS = 8  # of one layer between two backward passes; more calls can be made, but not recomputed
COLUMNS = 8  # of the input that identify a call
TOLERANCE = 1e-3  # relative; without a graph, the layers before this one may round differently


@torch.library.custom_op("hamburger::refuse_recomputation", mutates_args=("bases",))
def refuse_recomputation(bases: Tensor, call: str) -> None:
    """Raise in the backward pass: a compiled layer cannot know the bases of its first pass.

    It changes nothing, but an operator that says so would be removed.
    """
    if is_recomputing():
        raise RecomputationError(
            f"{call}: gradient checkpointing recomputes this compiled layer, which would move its bases twice; compile "
            f"without checkpointing it, or use init='fixed' for a dictionary that training does not update"
        )


class RecentBases:
    """The bases that the latest training calls of a layer started from, and what identifies each call.

    A call is identified by some columns of its input, which a recomputation gets again. Reading all of them would cost
    every training step a pass over x.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Tensor, Tensor]] = deque(maxlen=CALLS)
        self._recomputed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return RecentBases, ()  # a copy of the layer was never called

    @torch.no_grad()
    def select(self, call: str, bases: Tensor, x: Tensor) -> Tensor:
        """Record and return `bases` for a first call on x (b d n); for a recomputation return those of its first call.

        Only a recomputation synchronises with the GPU.
        """
        if torch.compiler.is_compiling():
            refuse_recomputation(bases, call)
            return bases
        sample = x[:, :, :: max(1, x.shape[2] // COLUMNS)].nan_to_num()
        if is_recomputing():
            self._recomputed = True
            return self._find(call, sample)
        if self._recomputed:  # the calls of the last step: no longer needed
            self._calls.clear()
            self._recomputed = False
        self._calls.append((sample, bases.clone()))
        return bases

    def _find(self, call: str, sample: Tensor) -> Tensor:
        distances = [
            ((sample - known).abs().amax().item() if known.shape == sample.shape else float("inf"), bases)
            for known, bases in self._calls
        ]
        least = min((distance for distance, _ in distances), default=float("inf"))
        matches = [bases for distance, bases in distances if distance == least]
        if least > TOLERANCE * sample.abs().amax().item():
            problem = f"no call on this input among the last {len(self._calls)}"
        elif any(not torch.equal(bases, matches[0]) for bases in matches):
            problem = "several calls on this input"
        else:
            return matches[0]
        raise RecomputationError(
            f"{call}: gradient checkpointing recomputes this layer, but the bases that the first pass started from are "
            f"unknown ({problem} since the last backward pass); call backward after each forward pass, leave this "
            f"layer out of the checkpointed part, or use init='fixed' for a dictionary that training does not update"
        )
