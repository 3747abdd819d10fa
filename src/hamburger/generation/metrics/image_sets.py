"""All distances between two sets of images at once, each under the name that its extractor allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger.generation.metrics.features import Extractor, distance_name, features_of
from hamburger.generation.metrics.frechet import frechet_distance, gaussian
from hamburger.generation.metrics.kernel_distance import KernelDistance, kernel_distance
from hamburger.generation.metrics.precision_recall import PrecisionRecall, precision_recall


@dataclass(frozen=True)
class Distances:
    """What was measured, by which extractor, on how many images."""

    extractor: str
    real: int
    fake: int
    frechet: float
    kernel: KernelDistance
    neighbours: PrecisionRecall

    @property
    def name(self) -> str:
        """ "FID", or `frechet[name@size]` of any other extractor."""
        return distance_name(self.extractor)

    def row(self) -> dict[str, float | int | str]:
        """For a result file: flat, and with all that the numbers depend on."""
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
        # in words: behind a "+-" even this would be read as how far other images might lead, which no subset tells
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

    Features of both sets are kept in memory (50,000 of 2048: 400 MB). `subset_size` is lowered to the smaller set's.
    """
    return compare_features(
        features_of(real, extractor),
        features_of(fake, extractor),
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
    """`compare_images`, of features that are there already, and the label of what made them.   n d, m d"""
    fewest = min(real.shape[0], fake.shape[0])
    return Distances(
        extractor=extractor,
        real=real.shape[0],
        fake=fake.shape[0],
        frechet=frechet_distance(gaussian(real), gaussian(fake)),
        kernel=kernel_distance(real, fake, generator=generator, subsets=subsets, subset_size=min(subset_size, fewest)),
        neighbours=precision_recall(real, fake, k=k),
    )
