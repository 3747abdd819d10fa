"""Cache on disk of features of image sets and of their mean and covariance, under keys that say how they were made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import CheckpointError, HamburgerError, OptionError, check_count
from hamburger.files import check_writable, write_atomically
from hamburger.generation.metrics.extractors import Extractor, tensor_bytes
from hamburger.generation.metrics.frechet import Gaussian

STATISTICS_ENTRY = "hamburger.statistics"  # in the metadata of the .safetensors file
STATISTICS_VERSION = 1


@dataclass(frozen=True)
class StatisticsKey:
    """Everything that the statistics depend on.

    `data`: digest of the images, or of their source and preparation; `height` and
    `width`: of the images before the extractor resizes them; `extractor`: its label, which names weights and resizer;
    `version`: that of the extractor's code.
    """

    data: str
    height: int
    width: int
    extractor: str
    version: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.:+-]{8,}", self.data):
            raise OptionError(f"StatisticsKey: data must be a digest, at least 8 characters, got {self.data!r}")
        check_count("StatisticsKey", "height", self.height, least=1)
        check_count("StatisticsKey", "width", self.width, least=1)
        if not self.extractor:
            raise OptionError("StatisticsKey: extractor must be the label of an extractor")

    @classmethod
    def of(cls, data: str, size: tuple[int, int], extractor: Extractor, version: str = "") -> StatisticsKey:
        return cls(data, size[0], size[1], extractor.label, version)

    @property
    def file_name(self) -> str:
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return f"statistics-{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"


def save_statistics(path: str | os.PathLike[str], key: StatisticsKey, statistics: Gaussian) -> None:
    """Write the statistics to a file that is either complete or not there."""
    from safetensors.torch import save

    tensors = {
        "count": torch.tensor(statistics.count, dtype=torch.int64),
        "mean": statistics.mean.contiguous(),
        "covariance": statistics.covariance.contiguous(),
    }
    entry = {"version": STATISTICS_VERSION, "key": dataclasses.asdict(key), "content": _content_digest(tensors)}
    write_atomically(Path(path), save(tensors, metadata={STATISTICS_ENTRY: json.dumps(entry)}))


def load_statistics(path: str | os.PathLike[str], key: StatisticsKey) -> Gaussian:
    """The statistics in a file; raises CheckpointError if the file is damaged or was written for another key."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"load_statistics: there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise _damage_error(path, str(error)) from error
    if STATISTICS_ENTRY not in metadata:
        raise CheckpointError(f"load_statistics: {path} was not written by save_statistics")
    try:
        entry = json.loads(metadata[STATISTICS_ENTRY])
        version, saved_key, content = entry["version"], entry["key"], entry["content"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damage_error(path, f"its metadata cannot be read ({error})") from error
    if version != STATISTICS_VERSION:
        raise CheckpointError(
            f"load_statistics: {path} has format {version!r}, expected {STATISTICS_VERSION}; delete it"
        )
    expected = dataclasses.asdict(key)
    if saved_key != expected:
        saved_key = saved_key if isinstance(saved_key, dict) else {}
        differences = [
            f"{name} is {saved_key.get(name)!r}, expected {expected.get(name)!r}"
            for name in sorted({*saved_key, *expected})
            if saved_key.get(name) != expected.get(name)
        ]
        raise CheckpointError(f"load_statistics: {path} was saved for another key: {'; '.join(differences)}")
    if tensors.keys() != {"count", "mean", "covariance"} or content != _content_digest(tensors):
        raise _damage_error(path, "its content does not match its checksum")
    try:
        return Gaussian(int(tensors["count"]), tensors["mean"], tensors["covariance"])
    except (HamburgerError, RuntimeError) as error:
        raise _damage_error(path, str(error)) from error


def cached_statistics(folder: str | os.PathLike[str], key: StatisticsKey, compute: Callable[[], Gaussian]) -> Gaussian:
    """The statistics of `key` from the folder, or from `compute`, whose result is then saved there.

    Each key has its own file. A file that is damaged or holds another key raises: delete it to compute again. Rank 0
    writes; `compute` must return the same on every rank.
    """
    path = Path(folder) / key.file_name
    if path.exists():
        return load_statistics(path, key)
    if distributed.rank() == 0:
        check_writable(path)  # before the work, not after it
    statistics = compute()
    if distributed.rank() == 0:
        save_statistics(path, key, statistics)
    return statistics


def _content_digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}\n".encode())
        digest.update(tensor_bytes(tensors[name]))
    return digest.hexdigest()


def _damage_error(path: Path, why: str) -> CheckpointError:
    size = path.stat().st_size
    return CheckpointError(
        f"load_statistics: {path} ({size} bytes) is damaged: {why}; delete it and compute the statistics again"
    )


# -- features of a fixed choice of images, for distances that need more than a mean and a covariance -------------------

FEATURE_ENTRY, FEATURE_VERSION = "hamburger.features", 1
FeaturesKey = dict[str, str | int]


def cached_features(folder: str | os.PathLike[str], key: FeaturesKey, compute: Callable[[], Tensor]) -> Tensor:
    """The features (n d, float32) of `key` from the folder, or from `compute`, whose result is then saved there.

    The file holds its key. A file that is damaged or holds another key raises: delete it to compute again.
    """
    text = json.dumps({"version": FEATURE_VERSION, **key}, sort_keys=True)
    path = Path(folder) / f"features-{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"
    if path.exists():
        return _read_features(path, text)
    check_writable(path)
    features = compute().detach().float().cpu().contiguous()
    from safetensors.torch import save

    entry = {"key": text, "content": _features_digest(features)}
    write_atomically(path, save({"features": features}, metadata={FEATURE_ENTRY: json.dumps(entry)}))
    return features


def _read_features(path: Path, text: str) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            entry = json.loads((file.metadata() or {})[FEATURE_ENTRY])
            features: Tensor = file.get_tensor("features")
        if entry["key"] != text:
            raise CheckpointError(f"cached_features: {path} was saved for another key; delete it")
        if entry["content"] != _features_digest(features):
            raise ValueError("its content does not match its checksum")
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cached_features: {path} is damaged ({error}); delete it") from error
    return features


def _features_digest(features: Tensor) -> str:
    header = f"{features.dtype} {tuple(features.shape)}\n".encode()
    return hashlib.sha256(header + tensor_bytes(features)).hexdigest()
