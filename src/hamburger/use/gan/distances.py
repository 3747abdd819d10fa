"""How far generated images are from real ones, every number under the name that its extractor allows.

The Gaussians of the Frechet distance are of all images, collected in float64 and never kept; kernel distance and
precision and recall take the features of a fixed choice of each set.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hamburger.data.draws import Draws, Integers
from hamburger.data.generation.load import ImageSet, cache_folder
from hamburger.errors import OptionError, check_count, check_positive, check_seed
from hamburger.gan.generator import Generator
from hamburger.gan.sampling import samples
from hamburger.metrics.code_digest import NoSource, code_digest
from hamburger.metrics.feature_cache import cached_features
from hamburger.metrics.features import NetworkExtractor, features_of, gaussian_of, tensor_bytes
from hamburger.metrics.frechet import Gaussian, Moments, frechet_distance
from hamburger.metrics.image_sets import Distances
from hamburger.metrics.kernel_distance import kernel_distance
from hamburger.metrics.precision_recall import precision_recall
from hamburger.metrics.resize import as_bytes
from hamburger.metrics.statistics_cache import StatisticsKey, cached_statistics

PROBED = 4  # real images whose features are made each time, to know kept ones of changed code
CHOICE_SEED = 0  # of the real images whose features are kept: always the same ones
Progress = Callable[[str, int], object]  # what is being read, and how many images of it


@dataclass(frozen=True)
class Measure:
    """`samples` images are generated from `seed`; `choice` of each set are compared one by one."""

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
                f"gan fid: {min(self.choice, self.samples)} images are too few for {self.neighbours} neighbours"
            )


@dataclass(frozen=True)
class RealSide:
    """What is known of the real images; made once, however many generators are measured against them."""

    gaussian: Gaussian
    features: Tensor
    name: str
    split: str
    size: int
    digest: str
    code: str | None = None  # of the extractor, besides its weights; none where nothing may be kept

    @property
    def seen(self) -> str:
        """Of the features: what `code` does not see may make others, and the label stays."""
        return hashlib.sha256(tensor_bytes(self.features)).hexdigest()


def look_at_real(
    images: ImageSet,
    extractor: NetworkExtractor,
    measure: Measure,
    *,
    device: torch.device,
    cache: Path | None = None,
    progress: Progress = lambda what, count: None,
) -> RealSide:
    """From the cache where these very images, this size and this extractor, weights and code, are in it. What an
    extractor without readable code makes is not kept, with a warning.
    """
    if len(images) <= measure.neighbours:
        raise OptionError(
            f"gan fid: {images.name}, split '{images.split}', has {len(images)} images; a covariance and "
            f"{measure.neighbours} neighbours need at least {measure.neighbours + 1}"
        )
    folder = cache or cache_folder().parent / "statistics"
    size = (images.size, images.size)
    extractor.to(device)

    def batches(indices: Integers) -> Iterator[Tensor]:
        for first in range(0, len(indices), measure.batch):
            few = indices[first : first + measure.batch]
            progress("real images", len(few))
            yield torch.from_numpy(np.array(images.images[few])).to(device)

    def probe(indices: Integers) -> Tensor:
        return extractor(torch.from_numpy(np.array(images.images[indices[:PROBED]])).to(device))

    order = np.arange(len(images))

    # as many as will be compared: a part of sorted ones would be of the first classes alone
    count = min(measure.choice, measure.samples, len(images))
    chosen = np.sort(Draws(CHOICE_SEED, len(images)).shuffled(len(images))[:count])
    code = _code(extractor)
    if code is None:
        gaussian = gaussian_of(batches(order), extractor, device=device)
        features = features_of(batches(chosen), extractor)
    else:
        key = StatisticsKey.of(images.digest, size, extractor, code)
        gaussian = cached_statistics(
            folder, key, lambda: gaussian_of(batches(order), extractor, device=device), probe(order)
        )
        own = {"extractor": extractor.label, "code": code}
        features = cached_features(
            folder,
            {"data": images.digest, "size": images.size, **own, "count": count, "seed": CHOICE_SEED},
            lambda: features_of(batches(chosen), extractor),
            probe(chosen),
        )
    return RealSide(gaussian, features, images.name, images.split, images.size, images.digest, code)


def _code(extractor: NetworkExtractor) -> str | None:
    try:
        return code_digest(extractor.network)
    except NoSource as why:
        warnings.warn(
            f"{extractor.label}: what it makes of real images is not kept for the next time, since a change of its "
            f"code would go unnoticed: {why}",
            stacklevel=3,
        )
        return None


def measure_generator(
    generator: Generator,
    real: RealSide,
    extractor: NetworkExtractor,
    measure: Measure,
    *,
    device: torch.device,
    progress: Progress = lambda what, count: None,
) -> Distances:
    if generator.resolution != real.size:
        raise OptionError(
            f"gan fid: the generator makes images of {generator.resolution} pixels, the real ones have {real.size}; "
            f"distances between sizes mean nothing"
        )
    generator.to(device)
    extractor.to(device)
    moments: Moments | None = None
    kept: list[Tensor] = []
    made = samples(
        generator, measure.samples, seed=measure.seed, batch_size=measure.batch, truncation=measure.truncation
    )
    left = min(measure.choice, measure.samples)
    for images, _ in made:
        progress("generated images", len(images))
        features = extractor(as_bytes(images))
        moments = moments or Moments(features.shape[1], device=device)
        moments.update(features)
        kept.append(features[:left])
        left -= len(kept[-1])
    assert moments is not None
    ours, theirs = torch.cat(kept), real.features.to(device)
    fewest = min(len(ours), len(theirs))
    if len(theirs) > fewest:
        raise OptionError(
            f"gan fid: the real side was looked at for {len(theirs)} images to compare, and {fewest} are generated; "
            f"look at it again with the same measure"
        )
    return Distances(
        extractor=extractor.label,
        real=real.gaussian.count,
        fake=measure.samples,
        frechet=frechet_distance(real.gaussian, moments.gaussian()),
        kernel=kernel_distance(
            theirs,
            ours,
            generator=torch.Generator().manual_seed(measure.seed),
            subsets=measure.subsets,
            subset_size=min(measure.subset_size, max(2, fewest // 2)),  # all of it each time would be no draw
        ),
        neighbours=precision_recall(theirs, ours[:fewest], k=measure.neighbours),
    )
