"""All that a run must remember to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from hamburger import distributed


@dataclass
class Done:
    """`step` counts finished steps."""

    step: int = 0
    loss: float | None = None  # the last that was logged

    def state(self) -> dict[str, Any]:
        return asdict(self)

    def load(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


@dataclass
class Scored(Done):
    """`evaluated` is the step that was last scored; `best` is the score of `best_step`."""

    evaluated: int = 0
    best_step: int = 0
    best: float | None = None
    scores: dict[str, Any] | None = None  # of the step that was last scored

    def load(self, state: Mapping[str, Any]) -> None:
        named = ("best_miou", "best_accuracy")  # as older checkpoints have it
        super().load({"best" if name in named else name: value for name, value in state.items()})


def random_states(device: torch.device) -> list[dict[str, Any]]:
    """The generators' states of every process, in order of rank; all processes must call this together."""
    own: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(device)
    if distributed.world() == 1:
        return [own]
    found: list[Any] = [None] * distributed.world()
    dist.all_gather_object(found, own)
    return found


def set_random_state(states: list[dict[str, Any]], device: torch.device) -> None:
    """This process's own state; with another number of processes the first one's, since all draw for the joined batch
    from equal generators."""
    own = states[distributed.rank()] if len(states) == distributed.world() else states[0]
    torch.set_rng_state(own["cpu"])
    if device.type == "cuda" and "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"], device)
