"""The whole state of a run in one file: written aside, synced, renamed; the one before is kept."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hamburger.errors import CheckpointError
from hamburger.files import write_durably

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
FORMAT = 1


class Loaded(NamedTuple):
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


def load(folder: Path) -> Loaded | None:
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
        return Loaded(state, path, notes)
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
