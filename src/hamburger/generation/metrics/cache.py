"""Features of image sets on disk, and their mean and covariance, under keys that say how they were made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import CheckpointError, HamburgerError, InputError, OptionError, check_count
from hamburger.files import check_writable, write_atomically
from hamburger.generation.metrics.features import Extractor, tensor_bytes
from hamburger.generation.metrics.frechet import Gaussian

ENTRY = "hamburger.statistics"  # of the metadata
VERSION = 1


@dataclass(frozen=True)
class StatisticsKey:
    """All that the statistics depend on.

    `data`: digest of the images (`images_digest`, or any other hash of their source and preparation); `height` and
    `width`: of the images before the extractor resizes them; `extractor`: its label, which names weights and resizer;
    `code`: a hash of what it does with them (`code_digest`).
    """

    data: str
    height: int
    width: int
    extractor: str
    code: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.:+-]{8,}", self.data):
            raise OptionError(f"StatisticsKey: data must be a digest, at least 8 characters, got {self.data!r}")
        check_count("StatisticsKey", "height", self.height, least=1)
        check_count("StatisticsKey", "width", self.width, least=1)
        if not self.extractor:
            raise OptionError("StatisticsKey: extractor must be the label of an extractor")

    @classmethod
    def of(cls, data: str, size: tuple[int, int], extractor: Extractor, code: str = "") -> StatisticsKey:
        return cls(data, size[0], size[1], extractor.label, code)

    @property
    def file_name(self) -> str:
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return f"statistics-{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"


def images_digest(batches: Iterable[Tensor]) -> str:
    """SHA-256 of images and their order, in any split into batches.   each b 3 h w, uint8"""
    digest = hashlib.sha256()
    for images in batches:
        if images.dtype != torch.uint8 or images.dim() != 4:
            raise InputError(f"images_digest: needs uint8 'b 3 h w', got {images.dtype} {tuple(images.shape)}")
        for image in images:
            digest.update(f"{tuple(image.shape)}".encode())
            digest.update(tensor_bytes(image))
    return digest.hexdigest()


def save_statistics(
    path: str | os.PathLike[str], key: StatisticsKey, statistics: Gaussian, probe: Tensor | None = None
) -> None:
    """Write a file that is either complete or not there. `probe`: see `cached_statistics`."""
    from safetensors.torch import save

    tensors = {
        "count": torch.tensor(statistics.count, dtype=torch.int64),
        "mean": statistics.mean.contiguous(),
        "covariance": statistics.covariance.contiguous(),
    }
    if probe is not None:
        tensors["probe"] = probe.detach().float().cpu().contiguous()
    entry = {"version": VERSION, "key": dataclasses.asdict(key), "content": _content_digest(tensors)}
    write_atomically(Path(path), save(tensors, metadata={ENTRY: json.dumps(entry)}))


class Stale(CheckpointError):
    """Kept numbers whose extractor no longer makes the features that it made: its code has changed."""


def load_statistics(path: str | os.PathLike[str], key: StatisticsKey, probe: Tensor | None = None) -> Gaussian:
    """The statistics in a file; a CheckpointError where they are damaged, or of another key or probe than this one."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"load_statistics: there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from error
    if ENTRY not in metadata:
        raise CheckpointError(f"load_statistics: {path} was not written by save_statistics")
    try:
        entry = json.loads(metadata[ENTRY])
        version, found, content = entry["version"], entry["key"], entry["content"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its description cannot be read ({error})") from error
    if version != VERSION:
        raise CheckpointError(f"load_statistics: {path} has format {version!r}, this library reads {VERSION}")
    wanted = dataclasses.asdict(key)
    if found != wanted:
        found = found if isinstance(found, dict) else {}
        differences = [
            f"{name} is {found.get(name)!r}, wanted {wanted.get(name)!r}"
            for name in sorted({*found, *wanted})
            if found.get(name) != wanted.get(name)
        ]
        raise CheckpointError(f"load_statistics: {path} is of something else: {'; '.join(differences)}")
    if tensors.keys() - {"probe"} != {"count", "mean", "covariance"} or content != _content_digest(tensors):
        raise _damaged(path, "its numbers are not those that were written")
    if probe is not None and not same_features(tensors.get("probe"), probe):
        raise Stale(f"load_statistics: {path} was made by other code than that of {key.extractor} here")
    try:
        return Gaussian(int(tensors["count"]), tensors["mean"], tensors["covariance"])
    except (HamburgerError, RuntimeError) as error:
        raise _damaged(path, str(error)) from error


def cached_statistics(
    folder: str | os.PathLike[str], key: StatisticsKey, compute: Callable[[], Gaussian], probe: Tensor | None = None
) -> Gaussian:
    """The statistics of `key` from the folder, or from `compute`, whose result is then kept there.

    Each key has a file of its own. One that is damaged, or holds another key, raises: delete it to compute again.
    Of several processes the first writes; `compute` must give all of them the same.

    A label has the hash of weights, not that of code, which is the key's `code`. `probe` holds features of a few
    images, as made now: where those kept with the statistics are others, they are computed again.
    """
    path = Path(folder) / key.file_name
    if path.exists():
        try:
            return load_statistics(path, key, probe)
        except Stale:
            pass
    if distributed.rank() == 0:
        check_writable(path)  # now, and not when the work is done
    statistics = compute()
    if distributed.rank() == 0:
        save_statistics(path, key, statistics, probe)
    return statistics


def same_features(kept: Tensor | None, now: Tensor) -> bool:
    """Equal up to the rounding of another device or batch.   m d, m d"""
    if kept is None or kept.shape != now.shape:
        return False
    now = now.detach().float().cpu()
    return torch.allclose(kept, now, rtol=1e-3, atol=1e-4 * float(now.abs().max()))


def _content_digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}\n".encode())
        digest.update(tensor_bytes(tensors[name]))
    return digest.hexdigest()


def _damaged(path: Path, why: str) -> CheckpointError:
    size = path.stat().st_size
    return CheckpointError(
        f"load_statistics: {path} ({size} bytes) is damaged: {why}; delete it and compute the statistics again"
    )


# ----------------------------------------------------------------------------------------------------------------------
# Features of a fixed choice of images on disk, for the distances that need more than a mean and a covariance.


FEATURE_ENTRY, FEATURE_VERSION = "hamburger.features", 1
Key = dict[str, str | int]


def cached_features(
    folder: str | os.PathLike[str], key: Key, compute: Callable[[], Tensor], probe: Tensor | None = None
) -> Tensor:
    """The features (n d, float32) of `key` from the folder, or from `compute`, whose result is then kept there.

    The key is in the file: one that holds another, or whose numbers are not those that were written, raises. `probe`
    holds the first rows as the extractor makes them now: where the kept ones are others, all are computed again.
    """
    text = json.dumps({"version": FEATURE_VERSION, **key}, sort_keys=True)
    path = Path(folder) / f"features-{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"
    if path.exists():
        kept = _read(path, text)
        if probe is None or same_features(kept[: len(probe)], probe):
            return kept
    check_writable(path)
    features = compute().detach().float().cpu().contiguous()
    from safetensors.torch import save

    entry = {"key": text, "content": _digest(features)}
    write_atomically(path, save({"features": features}, metadata={FEATURE_ENTRY: json.dumps(entry)}))
    return features


def _read(path: Path, text: str) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            entry = json.loads((file.metadata() or {})[FEATURE_ENTRY])
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
