"""Features of a fixed choice of images on disk, for the distances that need more than a mean and a covariance."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from hamburger.errors import CheckpointError
from hamburger.files import check_writable, write_atomically
from hamburger.metrics.features import tensor_bytes
from hamburger.metrics.statistics_cache import same_features

ENTRY, VERSION = "hamburger.features", 1
Key = dict[str, str | int]


def cached_features(
    folder: str | os.PathLike[str], key: Key, compute: Callable[[], Tensor], probe: Tensor | None = None
) -> Tensor:
    """The features (n d, float32) of `key` from the folder, or from `compute`, whose result is then kept there.

    The key is in the file: one that holds another, or whose numbers are not those that were written, raises. `probe`
    holds the first rows as the extractor makes them now: where the kept ones are others, all are computed again.
    """
    text = json.dumps({"version": VERSION, **key}, sort_keys=True)
    path = Path(folder) / f"features-{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"
    if path.exists():
        kept = _read(path, text)
        if probe is None or same_features(kept[: len(probe)], probe):
            return kept
    check_writable(path)
    features = compute().detach().float().cpu().contiguous()
    from safetensors.torch import save

    entry = {"key": text, "content": _digest(features)}
    write_atomically(path, save({"features": features}, metadata={ENTRY: json.dumps(entry)}))
    return features


def _read(path: Path, text: str) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            entry = json.loads((file.metadata() or {})[ENTRY])
            features: Tensor = file.get_tensor("features")
        if entry["key"] != text:
            raise CheckpointError(f"cached_features: {path} is of other images or another extractor; delete it")
        if entry["content"] != _digest(features):
            raise ValueError("its numbers are not those that were written")
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as damage:
        raise CheckpointError(
            f"cached_features: {path} is damaged ({damage}); delete it and it is made again"
        ) from damage
    return features


def _digest(features: Tensor) -> str:
    said = f"{features.dtype} {tuple(features.shape)}\n".encode()
    return hashlib.sha256(said + tensor_bytes(features)).hexdigest()
