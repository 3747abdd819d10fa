"""The state of a run in one file: written aside, synced, renamed; the previous one is kept."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hamburger import distributed
from hamburger.errors import CheckpointError
from hamburger.files import write_durably

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
FORMAT = 1


class LoadedCheckpoint(NamedTuple):
    """`notes` says what was wrong with files that had to be passed over."""

    state: dict[str, Any]
    path: Path
    notes: list[str]


def save(folder: Path, state: dict[str, Any]) -> Path:
    """Kill or fill the disk at any moment: `last.ckpt` or `previous.ckpt` is whole."""
    content = io.BytesIO()  # first in memory: a state that cannot be stored must not cost the old file
    torch.save({"format": FORMAT, **state}, content)
    write_durably(folder / LAST, content.getbuffer(), previous=folder / PREVIOUS)
    return folder / LAST


def load(folder: Path) -> LoadedCheckpoint | None:
    """The newest state that can be read, on the CPU; None where there is none yet."""
    notes = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            _check_sums(path)
            state = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or state.get("format") != FORMAT:
                raise ValueError(f"it is no training state of format {FORMAT}")
        except Exception as damage:  # whatever a damaged file makes torch, pickle or zip say
            why = str(damage).splitlines()[0] if str(damage) else type(damage).__name__
            notes.append(f"{path} is damaged ({why})")
            continue
        return LoadedCheckpoint(state, path, notes)
    if notes:
        raise CheckpointError(
            f"train: {'; '.join(notes)}: no usable checkpoint is left in {folder}; start anew in another folder"
        )
    return None


def _check_sums(path: Path) -> None:
    """torch reads a file with flipped bits as if it were whole; the sums of the archive that it is in tell."""
    with zipfile.ZipFile(path) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise ValueError(f"its entry {broken} does not have the sum that was written")


# ----------------------------------------------------------------------------------------------------------------------
# All that a run must remember to go on as if nothing had happened.


@dataclass
class Progress:
    """`step` counts finished steps."""

    step: int = 0
    loss: float | None = None  # the last that was logged

    def state(self) -> dict[str, Any]:
        return asdict(self)

    def load(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


@dataclass
class ScoredProgress(Progress):
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
    if distributed.world_size() == 1:
        return [own]
    found: list[Any] = [None] * distributed.world_size()
    dist.all_gather_object(found, own)
    return found


def set_random_state(states: list[dict[str, Any]], device: torch.device) -> None:
    """This process's own state; with another number of processes the first one's, since all draw for the joined batch
    from equal generators."""
    own = states[distributed.rank()] if len(states) == distributed.world_size() else states[0]
    torch.set_rng_state(own["cpu"])
    if device.type == "cuda" and "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"], device)
