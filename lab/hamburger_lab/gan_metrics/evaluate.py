"""Distances between a generator's images and real ones: Frechet and kernel distance, precision and recall.

Every number is labelled with the feature extractor that it was measured with.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hamburger.classification.data.base import ImageSet, find_cache_folder
from hamburger.errors import CheckpointError, InputError, OptionError, check_count, check_positive, check_seed
from hamburger.files import check_writable, write_atomically
from hamburger.generation.model import Generator
from hamburger.generation.sampling import samples
from hamburger.generation.visualize import to_bytes
from hamburger.training.loader import Integers, KeyedRng
from hamburger_lab.gan_metrics.distances import (
    Gaussian,
    KernelDistance,
    Moments,
    PrecisionRecall,
    frechet_distance,
    kernel_distance,
    precision_recall,
)
from hamburger_lab.gan_metrics.extractors import NetworkExtractor, distance_name

COMPARED_SEED = 0  # selects the real images whose features are cached: always the same ones
Progress = Callable[[str, int], object]  # receives what is being processed, and how many more images of it are done


@dataclass(frozen=True)
class MeasureSettings:
    """`samples` images are generated from `seed`; kernel distance, precision and recall compare
    `compared` of each set."""

    samples: int = 50_000
    compared: int = 10_000
    subsets: int = 100
    subset_size: int = 1_000
    neighbours: int = 3
    seed: int = 0
    truncation: float | None = None
    batch: int = 256

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("compared", 2), ("subsets", 2), ("subset_size", 2), ("neighbours", 1)):
            check_count("gan fid", name, getattr(self, name), least=least)
        check_count("gan fid", "batch", self.batch, least=1)
        check_seed("gan fid", self.seed)
        if self.truncation is not None:
            check_positive("gan fid", "truncation", self.truncation)
        if min(self.compared, self.samples) <= self.neighbours:
            raise OptionError(
                f"gan fid: {min(self.compared, self.samples)} images are too few for {self.neighbours} neighbours; "
                f"raise samples and compared"
            )


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


@dataclass(frozen=True)
class RealStatistics:
    """Statistics and features of the real images, computed once for all generators that are measured against them."""

    gaussian: Gaussian
    features: Tensor
    size: int


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
    extractor.to(device)
    # as many as will be compared, at random: the first of a set sorted by class would be of a few classes only
    count = min(measure.compared, measure.samples, len(images))
    chosen = np.sort(KeyedRng(COMPARED_SEED, len(images)).shuffled(len(images))[:count])

    def batches(indices: Integers) -> Iterator[Tensor]:
        for first in range(0, len(indices), measure.batch):
            some = indices[first : first + measure.batch]
            progress("real images", len(some))
            yield torch.from_numpy(np.array(images.images[some])).to(device)

    def compute_statistics() -> dict[str, Tensor]:
        gaussian, _ = collect_features(batches(np.arange(len(images))), extractor)
        return {"count": torch.tensor(gaussian.count), "mean": gaussian.mean, "covariance": gaussian.covariance}

    def compute_features() -> dict[str, Tensor]:
        return {"features": torch.cat([extractor(some).cpu() for some in batches(chosen)])}

    if extractor.version is None:
        warnings.warn(
            f"{extractor.label}: statistics of the real images are not cached, since a change of its code would go "
            f'unnoticed; to cache them, declare a version (features_version = "1" in the module, or version=)',
            stacklevel=2,
        )
        statistics, features = compute_statistics(), compute_features()
    else:
        folder = cache or find_cache_folder().parent / "statistics"
        key = {"data": images.digest, "size": images.size, "extractor": extractor.label, "version": extractor.version}
        statistics = cached_tensors(folder, "statistics", key, compute_statistics)
        features = cached_tensors(folder, "features", {**key, "count": count, "seed": COMPARED_SEED}, compute_features)
    gaussian = Gaussian(int(statistics["count"]), statistics["mean"], statistics["covariance"])
    return RealStatistics(gaussian, features["features"], images.size)


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

    def generated_images() -> Iterator[Tensor]:
        batches = samples(
            generator, measure.samples, seed=measure.seed, batch_size=measure.batch, truncation=measure.truncation
        )
        for images, _ in batches:
            progress("generated images", len(images))
            yield to_bytes(images)

    gaussian, fake_features = collect_features(
        generated_images(), extractor, keep=min(measure.compared, measure.samples)
    )
    real_features = real.features.to(device)
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
        frechet=frechet_distance(real.gaussian, gaussian),
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


def collect_features(
    batches: Iterable[Tensor], extractor: NetworkExtractor, *, keep: int = 0
) -> tuple[Gaussian, Tensor]:
    """Mean and covariance of the features of all images (b 3 h w, uint8), and the features of the first `keep`."""
    moments: Moments | None = None
    chunks: list[Tensor] = []
    for images in batches:
        features = extractor(images)
        moments = moments or Moments(features.shape[1], device=features.device)
        moments.update(features)
        chunks.append(features[:keep])
        keep -= len(chunks[-1])
    if moments is None:
        raise InputError("collect_features: there are no images; give at least one batch")
    return moments.gaussian(), torch.cat(chunks)


def cached_tensors(
    folder: Path, kind: str, key: dict[str, Any], compute: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """The tensors of `key` from the folder, or from `compute`, whose result is then saved there.

    The key must hold everything that the tensors depend on; its hash is the name of the file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / f"{kind}-{digest}.safetensors"
    if path.exists():
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"gan fid: the cached file {path} is damaged ({error}); delete it") from error
    check_writable(path)  # before the work, not after it
    tensors = {name: value.detach().cpu().contiguous() for name, value in compute().items()}
    write_atomically(path, save(tensors))
    return tensors
