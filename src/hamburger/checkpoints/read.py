"""Read a weights file into a flat dict of tensors; nothing in the file is executed."""

from __future__ import annotations

import errno
import os
import pickle
import re
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamburger import errors

WRAPPERS = ("net", "state_dict", "model", "module")  # HamNet; mmcv and mmengine; common training scripts; DeepSpeed
NOT_A_PICKLE = ("Unsupported operand", "String is too long")  # in torch's error for bytes that are not a torch pickle
PARALLEL = "module."  # the prefix that (Distributed)DataParallel puts before every key


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the state dict in a .pth or .safetensors file, on the CPU, without wrappers or `module.` prefixes.

    Pickled objects other than tensors and plain containers are refused and never executed: the file is read with
    `torch.load(weights_only=True)`.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"read_checkpoint: {path} is a folder; pass the file in it")
    if not path.exists():
        raise FileNotFoundError(f"read_checkpoint: there is no file {path}")
    return unwrap(_read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path), str(path))


def unwrap(checkpoint: object, name: str = "the checkpoint") -> dict[str, Tensor]:
    """Return the tensors in a checkpoint, out of {"net": ...}, {"state_dict": ...} and the like."""
    while isinstance(checkpoint, Mapping):
        inside = [key for key in WRAPPERS if isinstance(checkpoint.get(key), Mapping)]
        if len(inside) > 1:
            raise CheckpointError(f"{name} holds several state dicts, {inside}; pass one of them")
        if not inside:
            break
        checkpoint = checkpoint[inside[0]]
    else:
        raise CheckpointError(f"{name} holds a {type(checkpoint).__name__}, not a state dict (names to tensors)")
    tensors = {key: value for key, value in checkpoint.items() if isinstance(key, str) and isinstance(value, Tensor)}
    others = [str(key) for key in checkpoint if key not in tensors]
    if not tensors:
        raise CheckpointError(
            f"{name} holds no tensors; its keys: {others[:12]}, known wrappers: {', '.join(WRAPPERS)}"
        )
    if others:
        warnings.warn(f"{name}: ignored {len(others)} entries that are not tensors: {others}", stacklevel=3)
    if all(key.startswith(PARALLEL) for key in tensors):
        return {key.removeprefix(PARALLEL): value for key, value in tensors.items()}
    return tensors


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's message goes on to recommend weights_only=False, so it is not shown
        if any(words in str(error) for words in NOT_A_PICKLE):
            raise _corrupt(path, "not a torch file, or one that holds objects instead of tensors") from None
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise CheckpointError(
            f"read_checkpoint: {path} holds more than tensors: loading it would call "
            f"'{name[1] if name else 'an object'}'. It was refused, since a pickle can run any code. If you trust its "
            f"author, allow that name: `with torch.serialization.safe_globals([...]): read_checkpoint(path)`; or run "
            f"torch.load(path, weights_only=False) in a sandbox and save only the tensors"
        ) from None
    except Exception as error:  # a damaged pickle can raise any exception
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise  # not the file's fault; a truncated zip ends in EINVAL
        raise _corrupt(path, f"{type(error).__name__} {error}".rstrip()) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:  # an optional dependency
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError(f"read_checkpoint: {path} needs the package safetensors; pip install safetensors") from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise _corrupt(path, str(error)) from error


def _corrupt(path: Path, why: str) -> CheckpointError:
    size = path.stat().st_size
    return CheckpointError(
        f"read_checkpoint: {path} ({size} bytes) is not a readable checkpoint: {why}; download or save it again"
    )


# -- report ------------------------------------------------------------------------------------------------------------


SHOWN = 8  # keys printed per reason for skipping; the report itself holds them all


@dataclass(frozen=True)
class Report:
    """What happened to every key of a load: each key of the checkpoint and of the layer is in exactly one mapping.

    - `loaded`: our key -> the checkpoint's key
    - `held_back`: the same for keys that fit, if others did not and strict=True left the layer unchanged
    - `missing`: our key -> why the checkpoint has no value for it
    - `kept`: our key that the checkpoint lacks and that keeps its value -> why
    - `mismatched`: our key -> the checkpoint's key, both shapes and the likely cause
    - `unexpected`: key inside the burger -> why it was not used
    - `skipped`: key outside the burger, or without use here -> why
    - `conflicts`: option -> how the checkpoint's burger differs from the layer although the keys may fit
    """

    source: str
    prefix: str
    loaded: dict[str, str] = field(default_factory=dict)
    held_back: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    mismatched: dict[str, str] = field(default_factory=dict)
    unexpected: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the layer matches the checkpoint's burger; kept and skipped keys do not count."""
        return not (self.missing or self.mismatched or self.unexpected or self.conflicts)

    def __str__(self) -> str:
        where = f"under '{self.prefix}'" if self.prefix else "at the top level"
        lines = [f"{self.source} burger {where}: {len(self.loaded)} loaded, {self._count()}"]
        for title in ("conflicts", "mismatched", "missing", "unexpected", "kept"):
            entries: dict[str, str] = getattr(self, title)
            lines += [f"  {title}:"] * bool(entries) + [f"    {key}: {why}" for key, why in entries.items()]
        if self.skipped:
            lines += ["  skipped:", *_group_by_reason(self.skipped)]
        for title, pairs in (("loaded", self.loaded), ("held back", self.held_back)):
            lines += [f"  {title}:"] * bool(pairs) + [f"    {ours} <- {theirs}" for ours, theirs in pairs.items()]
        return "\n".join(lines)

    def _count(self) -> str:
        titles = ("missing", "kept", "mismatched", "unexpected", "skipped", "conflicts")
        return ", ".join(f"{len(getattr(self, title))} {title}" for title in titles)


def _group_by_reason(skipped: dict[str, str]) -> list[str]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key, why in skipped.items():
        groups[why].append(key)
    lines = []
    for why, keys in groups.items():
        more = f", ... {len(keys) - SHOWN} more in Report.skipped" if len(keys) > SHOWN else ""
        lines.append(f"    {why}: {', '.join(keys[:SHOWN])}{more}")
    return lines


class CheckpointError(errors.CheckpointError, ValueError):
    """A checkpoint cannot be read or does not fit the layer; in the second case `report` lists the keys and reasons."""

    def __init__(self, message: str, report: Report | None = None) -> None:
        super().__init__(message if report is None else f"{message}\n{report}")
        self.report = report
