"""The state of a run in one file, written atomically; the previous one is kept."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hamburger import devices, distributed
from hamburger.checkpoints.read import describe_damage, load_tensors
from hamburger.errors import CheckpointError, shorten
from hamburger.files import write_durably

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
FORMAT = 1


class LoadedCheckpoint(NamedTuple):
    """`notes`: what was wrong with files that had to be skipped."""

    state: dict[str, Any]
    path: Path
    notes: list[str]


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `last.ckpt`. Whenever the process is killed or the disk full, it or `previous.ckpt` is complete."""
    content = io.BytesIO()  # in memory first: a state that cannot be stored must not replace the old file
    torch.save({"format": FORMAT, **state}, content)
    write_durably(path, content.getbuffer(), previous=path.with_name(PREVIOUS))


def load(folder: Path) -> LoadedCheckpoint | None:
    """The newest state that can be read, on the CPU; None where there is none yet."""
    notes = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = load_tensors(path)
            if not isinstance(state, dict) or state.get("format") != FORMAT:
                raise ValueError(f"not a training state of format {FORMAT}")
        except Exception as damage:  # a damaged file can raise anything in torch, pickle or zip
            notes.append(f"{path} is damaged ({describe_damage(damage)})")
            continue
        return LoadedCheckpoint(state, path, notes)
    if notes:
        raise CheckpointError(
            f"train: {'; '.join(notes)}: no usable checkpoint is left in {folder}; start again in another folder"
        )
    return None


# -- progress and random state -----------------------------------------------------------------------------------------


@dataclass
class Progress:
    """`step` counts finished steps."""

    step: int = 0
    loss: float | None = None  # the last one logged

    def check(self, steps: int) -> None:
        """Raise ValueError on a field that a run of so many steps cannot have written."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int":
                valid = type(value) is int and 0 <= value <= steps
            else:
                valid = value is None or type(value) is (dict if "dict" in str(one.type) else float)
            if not valid:
                raise ValueError(f"progress has {one.name} {shorten(value)}")


@dataclass
class ScoredProgress(Progress):
    """`evaluated`: the step last scored.   `best`: the score of `best_step`."""

    evaluated: int = 0
    best_step: int = 0
    best: float | None = None
    scores: dict[str, Any] | None = None  # of the step `evaluated`


def random_states(device: torch.device) -> list[dict[str, Any]]:
    """The random states of all processes, in order of rank; all must call this together."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if (on_device := devices.get_random_state(device)) is not None:
        state[device.type] = on_device
    return distributed.gather_objects(state)


def set_random_state(states: list[dict[str, Any]], device: torch.device) -> None:
    """Restore this process's state, or that of rank 0 if the number of processes has changed.

    Rank 0's state serves all, since every process draws for the global batch from the same state.
    """
    state = states[distributed.rank()] if len(states) == distributed.world_size() else states[0]
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        devices.set_random_state(device, state[device.type])
