"""Improved precision and recall: the fraction of one set that lies within the neighbourhoods of the other.

Kynkaanniemi, Karras, Laine, Lehtinen, Aila: Improved precision and recall metric for assessing generative models, 2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger.errors import NotFiniteError, OptionError, check_count
from hamburger.tensors import check_shapes, check_tensor

PAIRS = 2**23  # distances in memory at a time: 64 MiB


@dataclass(frozen=True)
class PrecisionRecall:
    """`precision`: fraction of fake samples in a real neighbourhood; `recall`: of real samples in a fake one."""

    precision: float
    recall: float
    k: int


def precision_recall(real: Tensor, fake: Tensor, *, k: int = 3) -> PrecisionRecall:
    """Improved precision and recall of features.   real: n d    fake: m d

    The neighbourhood of a sample is the closed ball up to the k-th nearest other sample of its set. Both values depend
    on n and m: compare only results of the same sizes. Distances are computed in float64 from differences, not from
    products, so that equal samples have distance 0.
    """
    for name, value in (("real", real), ("fake", fake)):
        check_tensor("precision_recall", name, value)
        if not value.isfinite().all():
            raise NotFiniteError(f"precision_recall: {name} must be finite, but it has NaN or infinity")
    check_shapes("precision_recall", real=(real, "n d"), fake=(fake, "m d"))
    check_count("precision_recall", "k", k, least=1)
    fewest = min(real.shape[0], fake.shape[0])
    if fewest <= k:
        raise OptionError(f"precision_recall: the {k}-th neighbour needs more than {k} samples, got {fewest}; lower k")
    real, fake = real.detach().double(), fake.detach().double()
    return PrecisionRecall(
        precision=float(find_covered(fake, real, neighbour_radii(real, k)).double().mean()),
        recall=float(find_covered(real, fake, neighbour_radii(fake, k)).double().mean()),
        k=k,
    )


def neighbour_radii(x: Tensor, k: int) -> Tensor:
    """Distance of each sample to its k-th nearest other one; copies count as others.   n d    ->    n"""
    # the distance 0 to itself is the smallest in a row, so the k-th other one is number k + 1
    return torch.cat([_distances(rows, x).kthvalue(k + 1).values for rows in _blocks(x, x.shape[0])])


def find_covered(x: Tensor, centres: Tensor, radius: Tensor) -> Tensor:
    """Whether each sample lies in a ball around some centre.   x: n d    centres: m d    radius: m    ->    n, bool"""
    return torch.cat([(_distances(rows, centres) <= radius).any(1) for rows in _blocks(x, centres.shape[0])])


def _blocks(x: Tensor, others: int) -> Iterator[Tensor]:
    return iter(x.split(max(1, PAIRS // others)))


def _distances(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
