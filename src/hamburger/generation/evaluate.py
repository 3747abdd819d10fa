"""Distances between generated and real images (Frechet, kernel, precision and recall), and rows of result files.

Every number is labelled with the feature extractor that it was measured with.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamburger.classification.data.base import ImageSet, find_cache_folder
from hamburger.errors import OptionError, check_count, check_positive, check_seed
from hamburger.files import read_json_lines, write_atomically, write_json_lines
from hamburger.generation.image_grid import to_bytes
from hamburger.generation.metrics.cache import FeaturesKey, StatisticsKey, cached_features, cached_statistics
from hamburger.generation.metrics.extractors import (
    Extractor,
    NetworkExtractor,
    collect_statistics,
    distance_name,
    extract_features,
)
from hamburger.generation.metrics.frechet import Gaussian, Moments, fit_gaussian, frechet_distance
from hamburger.generation.metrics.kernel_distance import KernelDistance, kernel_distance
from hamburger.generation.metrics.precision_recall import PrecisionRecall, precision_recall
from hamburger.generation.networks.generator import Generator
from hamburger.generation.sampling import samples
from hamburger.training.keyed_rng import Integers, KeyedRng


@dataclass(frozen=True)
class Distances:
    """All distances between two sets, the label of the extractor and the numbers of images."""

    extractor: str
    real: int
    fake: int
    frechet: float
    kernel: KernelDistance
    neighbours: PrecisionRecall

    @property
    def name(self) -> str:
        """ "FID", or `frechet[name@size]` for any other extractor."""
        return distance_name(self.extractor)

    def row(self) -> dict[str, float | int | str]:
        """A flat row for a result file, with everything that the numbers depend on."""
        return {
            "name": self.name,
            "frechet": self.frechet,
            "extractor": self.extractor,
            "kid": self.kernel.mean,
            "kid_standard_error": self.kernel.standard_error,
            "kid_subset_std": self.kernel.subset_std,
            "kid_subsets": self.kernel.subsets,
            "kid_subset_size": self.kernel.subset_size,
            "precision": self.neighbours.precision,
            "recall": self.neighbours.recall,
            "neighbours": self.neighbours.k,
            "real_images": self.real,
            "fake_images": self.fake,
        }

    def __str__(self) -> str:
        # in words: "+-" would be read as the variation between sets of images, which subsets do not show
        return (
            f"{self.name} {self.frechet:.3f}, {distance_name(self.extractor, 'kernel')} {self.kernel.mean:.5f} "
            f"(subsets of {self.kernel.subset_size} vary by {self.kernel.subset_std:.5f}), "
            f"precision {self.neighbours.precision:.3f}, recall {self.neighbours.recall:.3f} "
            f"({self.real} real and {self.fake} generated images; {self.extractor})"
        )


def compare_images(
    real: Iterable[Tensor],
    fake: Iterable[Tensor],
    extractor: Extractor,
    *,
    generator: torch.Generator,
    subsets: int = 100,
    subset_size: int = 1000,
    k: int = 3,
) -> Distances:
    """Every distance between two sets, given in batches.   each b 3 h w, uint8

    Features of both sets are kept in memory (50,000 of 2048: 400 MB). `subset_size` is at most the smaller set's.
    """
    return compare_features(
        extract_features(real, extractor),
        extract_features(fake, extractor),
        extractor.label,
        generator=generator,
        subsets=subsets,
        subset_size=subset_size,
        k=k,
    )


def compare_features(
    real: Tensor,
    fake: Tensor,
    extractor: str,
    *,
    generator: torch.Generator,
    subsets: int = 100,
    subset_size: int = 1000,
    k: int = 3,
) -> Distances:
    """`compare_images` for given features and the label of their extractor.   n d, m d"""
    fewest = min(real.shape[0], fake.shape[0])
    return Distances(
        extractor=extractor,
        real=real.shape[0],
        fake=fake.shape[0],
        frechet=frechet_distance(fit_gaussian(real), fit_gaussian(fake)),
        kernel=kernel_distance(real, fake, generator=generator, subsets=subsets, subset_size=min(subset_size, fewest)),
        neighbours=precision_recall(real, fake, k=k),
    )


# -- measuring a generator ---------------------------------------------------------------------------------------------

CHOICE_SEED = 0  # selects the real images whose features are cached: always the same ones
Progress = Callable[[str, int], object]  # receives what is being processed, and how many more images of it are done


@dataclass(frozen=True)
class MeasureSettings:
    """`samples` images are generated from `seed`; kernel distance, precision and recall take `choice` of each set."""

    samples: int = 50_000
    choice: int = 10_000
    subsets: int = 100
    subset_size: int = 1_000
    neighbours: int = 3
    seed: int = 0
    truncation: float | None = None
    batch: int = 256

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("choice", 2), ("subsets", 2), ("subset_size", 2), ("neighbours", 1)):
            check_count("gan fid", name, getattr(self, name), least=least)
        check_count("gan fid", "batch", self.batch, least=1)
        check_seed("gan fid", self.seed)
        if self.truncation is not None:
            check_positive("gan fid", "truncation", self.truncation)
        if min(self.choice, self.samples) <= self.neighbours:
            raise OptionError(
                f"gan fid: {min(self.choice, self.samples)} images are too few for {self.neighbours} neighbours; "
                f"raise samples and choice"
            )


@dataclass(frozen=True)
class RealStatistics:
    """Statistics and features of the real images, computed once for all generators that are measured against them."""

    gaussian: Gaussian
    features: Tensor
    name: str
    split: str
    size: int
    digest: str


def measure_real(
    images: ImageSet,
    extractor: NetworkExtractor,
    measure: MeasureSettings,
    *,
    device: torch.device,
    cache: Path | None = None,
    progress: Progress = lambda what, count: None,
) -> RealStatistics:
    """Statistics and features of the real images, from the cache if it has them for this extractor.

    Results of an extractor without a version are not cached, with a warning.
    """
    if len(images) <= measure.neighbours:
        raise OptionError(
            f"gan fid: {images.name}, split '{images.split}', has {len(images)} images; a covariance and "
            f"{measure.neighbours} neighbours need at least {measure.neighbours + 1}"
        )
    folder = cache or find_cache_folder().parent / "statistics"
    extractor.to(device)
    everything = np.arange(len(images))
    # as many as will be compared, at random: the first of a set sorted by class would be of a few classes only
    count = min(measure.choice, measure.samples, len(images))
    chosen = np.sort(KeyedRng(CHOICE_SEED, len(images)).shuffled(len(images))[:count])

    def batches(indices: Integers) -> Iterator[Tensor]:
        for first in range(0, len(indices), measure.batch):
            some = indices[first : first + measure.batch]
            progress("real images", len(some))
            yield torch.from_numpy(np.array(images.images[some])).to(device)

    def compute_statistics() -> Gaussian:
        return collect_statistics(batches(everything), extractor, device=device)

    def compute_features() -> Tensor:
        return extract_features(batches(chosen), extractor)

    if extractor.version is None:
        warnings.warn(
            f"{extractor.label}: statistics of the real images are not cached, since a change of its code would go "
            f'unnoticed; to cache them, declare a version (features_version = "1" in the module, or version=)',
            stacklevel=2,
        )
        gaussian, features = compute_statistics(), compute_features()
    else:
        statistics_key = StatisticsKey.of(images.digest, (images.size, images.size), extractor, extractor.version)
        gaussian = cached_statistics(folder, statistics_key, compute_statistics)
        features_key: FeaturesKey = {
            "data": images.digest,
            "size": images.size,
            "extractor": extractor.label,
            "extractor_version": extractor.version,
            "count": count,
            "seed": CHOICE_SEED,
        }
        features = cached_features(folder, features_key, compute_features)
    return RealStatistics(gaussian, features, images.name, images.split, images.size, images.digest)


def measure_generator(
    generator: Generator,
    real: RealStatistics,
    extractor: NetworkExtractor,
    measure: MeasureSettings,
    *,
    device: torch.device,
    progress: Progress = lambda what, count: None,
) -> Distances:
    """All distances between a generator's samples and the real images; both with the same extractor and settings."""
    if generator.resolution != real.size:
        raise OptionError(
            f"gan fid: the generator makes images of {generator.resolution} pixels, the real ones have {real.size}; "
            f"distances between sizes mean nothing"
        )
    generator.to(device)
    extractor.to(device)
    moments: Moments | None = None
    kept: list[Tensor] = []
    batches = samples(
        generator, measure.samples, seed=measure.seed, batch_size=measure.batch, truncation=measure.truncation
    )
    missing = min(measure.choice, measure.samples)
    for images, _ in batches:
        progress("generated images", len(images))
        features = extractor(to_bytes(images))
        moments = moments or Moments(features.shape[1], device=device)
        moments.update(features)
        kept.append(features[:missing])
        missing -= len(kept[-1])
    assert moments is not None
    fake_features, real_features = torch.cat(kept), real.features.to(device)
    fewest = min(len(fake_features), len(real_features))
    if len(real_features) > fewest:
        raise OptionError(
            f"gan fid: the real statistics hold features of {len(real_features)} images, but only {fewest} images are "
            f"generated; call measure_real with the same settings"
        )
    return Distances(
        extractor=extractor.label,
        real=real.gaussian.count,
        fake=measure.samples,
        frechet=frechet_distance(real.gaussian, moments.gaussian()),
        kernel=kernel_distance(
            real_features,
            fake_features,
            generator=torch.Generator().manual_seed(measure.seed),
            subsets=measure.subsets,
            # at most half of a set: subsets that are the whole set would all be equal
            subset_size=min(measure.subset_size, max(2, fewest // 2)),
        ),
        neighbours=precision_recall(real_features, fake_features[:fewest], k=measure.neighbours),
    )


# -- rows of results/gan_*.jsonl: a training run and its distances -----------------------------------------------------

# two rows that agree in these are of the same run and measurement; runs on other images are other runs
ROW_KEY = (
    *("recipe", "recipe_hash", "context", "seed", "steps", "batch", "overrides", "hardware"),
    *("data", "split", "data_sha256", "extractor", "fake_images", "compared_images"),
)
# the first fields of a row, in this order
LEADING_FIELDS = ("recipe", "context", "seed", "frechet", "extractor", "kid", "seconds_per_step", "peak_mb", "steps")


def make_result_row(
    trained: dict[str, Any], distances: dict[str, Any], *, real: dict[str, Any], compared: int
) -> dict[str, Any]:
    """One row from a run's result.json (`trained`), the row of its distances, and facts about the real images."""
    # "precision" is a data type in result.json and a fraction of images in distances: the former becomes "dtype"
    trained = {**trained, "dtype": trained["precision"]}
    fields = {**trained, **distances, **real, "compared_images": compared}
    return {**{name: fields.pop(name) for name in LEADING_FIELDS}, **fields}


def cached_distances(run: Path, key: Sequence[Any], measure: Callable[[], Distances]) -> dict[str, Any]:
    """The row of distances saved in the run folder under `key`, or a new one from `measure`, which is then saved.

    The key must hold everything that the numbers depend on: generator, real images, extractor and settings.
    """
    text = json.dumps(list(key))
    path = run / f"distances-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if path.exists():
        try:
            saved = json.loads(path.read_text())
            if saved["key"] == text:
                return dict(saved["row"])
        except (ValueError, KeyError, TypeError):
            pass  # not a file of ours, or a damaged one: measure again
    row: dict[str, Any] = dict(measure().row())
    write_atomically(path, json.dumps({"key": text, "row": row}).encode())
    return row


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a result file; an empty list if there is no file yet."""
    return read_json_lines(path, "gan grid")


def append_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add rows to a result file; a new row replaces an older one of the same run and measurement."""
    merged = {_row_key(row): row for row in read_rows(path)}
    merged.update((_row_key(row), row) for row in rows)
    write_json_lines(path, merged.values())


def _row_key(row: dict[str, Any]) -> str:
    return json.dumps([row.get(name) for name in ROW_KEY])
