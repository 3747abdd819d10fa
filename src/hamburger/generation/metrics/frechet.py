"""Mean and covariance of features, accumulated over batches, and the Frechet distance between two Gaussians.

Everything is float64: a sum of fifty thousand features in float32 loses digits that the distance needs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import InputError, NotFiniteError, ShapeError, check_count
from hamburger.tensors import check_shapes, check_tensor


class FewSamplesWarning(UserWarning):
    """Warns of fewer samples than features: the covariance is singular, and the distance is biased far upwards."""


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Statistics of a set of features: `count` samples, `mean` (d), `covariance` (d d, divided by count - 1).

    `covariance` must be symmetric; it may be singular. Both are float64 and on the CPU.
    """

    count: int
    mean: Tensor
    covariance: Tensor

    def __post_init__(self) -> None:
        check_count("Gaussian", "count", self.count, least=2)
        for name, value in (("mean", self.mean), ("covariance", self.covariance)):
            check_tensor("Gaussian", name, value)
            if not value.isfinite().all():
                raise NotFiniteError(f"Gaussian: {name} must be finite, but it has NaN or infinity")
        object.__setattr__(self, "mean", self.mean.detach().double().cpu())
        object.__setattr__(self, "covariance", self.covariance.detach().double().cpu())
        if self.mean.dim() != 1 or self.covariance.shape != (self.dim, self.dim):
            raise ShapeError(
                f"Gaussian: mean must be 'd' and covariance 'd d', got {tuple(self.mean.shape)} and "
                f"{tuple(self.covariance.shape)}"
            )
        skew = float((self.covariance - self.covariance.mT).abs().max()) if self.dim else 0.0
        if skew > 1e-8 * float(self.covariance.abs().max()):
            raise InputError(f"Gaussian: covariance must be symmetric, but it differs from its transpose by {skew:.3g}")

    @property
    def dim(self) -> int:
        return self.mean.shape[0]


class Moments:
    """Accumulates mean and scatter of features over batches of any size, and over ranks.

    Batches are merged by their means and the scatter about them (Chan, Golub and LeVeque): differences of large sums of
    squares, which lose digits, never occur. `device` holds the sums.
    """

    def __init__(self, dim: int, *, device: torch.device | str = "cpu") -> None:
        check_count("Moments", "dim", dim, least=1)
        self.dim = dim
        self.count = 0
        self.mean = torch.zeros(dim, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, features: Tensor) -> None:
        """Add a batch.   features: b d; b may be 0"""
        x = _check_features("Moments.update", features).to(self.mean)
        if x.shape[1] != self.dim:
            raise ShapeError(f"Moments.update: needs {self.dim} features a sample, got {tuple(features.shape)} 'b d'")
        if x.shape[0]:
            mean = x.mean(0)
            centred = x - mean
            self._add(x.shape[0], mean, centred.mT @ centred)

    def merge(self, other: Moments) -> None:
        """Add the samples of another accumulator, which is not changed."""
        if other.dim != self.dim:
            raise ShapeError(f"Moments.merge: the other must have {self.dim} features, got {other.dim}")
        if other.count:
            self._add(other.count, other.mean.to(self.mean), other.scatter.to(self.mean))

    @torch.no_grad()
    def gather(self, device: torch.device | str = "cpu") -> None:
        """Sum over all ranks, communicating on `device`; ranks without samples must call it too.

        Samples count as often as they were passed to `update`: a sampler that repeats some, so that all ranks have as
        many, biases the result.
        """
        if distributed.world_size() == 1:
            return
        home = self.mean.device
        local_count = torch.tensor(float(self.count), dtype=torch.float64, device=device)
        count = distributed.sum_over_ranks(local_count)
        if count == 0:
            return
        mean = distributed.sum_over_ranks(local_count * self.mean.to(device)) / count
        shift = self.mean.to(device) - mean
        scatter = distributed.sum_over_ranks(self.scatter.to(device) + local_count * shift.outer(shift))
        self.count, self.mean, self.scatter = int(count), mean.to(home), scatter.to(home)

    def gaussian(self) -> Gaussian:
        """Mean and covariance of the samples so far."""
        if self.count < 2:
            raise InputError(f"Moments.gaussian: a covariance needs at least 2 samples, got {self.count}")
        covariance = self.scatter / (self.count - 1)
        return Gaussian(self.count, self.mean.clone(), (covariance + covariance.mT) / 2)

    def _add(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        total = self.count + count
        shift = mean - self.mean
        self.mean = self.mean + shift * (count / total)
        self.scatter = self.scatter + scatter + shift.outer(shift) * (self.count * count / total)
        self.count = total


def fit_gaussian(features: Tensor) -> Gaussian:
    """Mean and covariance of features.   n d"""
    x = _check_features("gaussian", features)
    moments = Moments(x.shape[1])
    moments.update(x)
    return moments.gaussian()


def frechet_distance(a: Gaussian, b: Gaussian) -> float:
    """|m_a - m_b|^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2), the squared 2-Wasserstein distance of two Gaussians.

    The last trace sums the square roots of the eigenvalues of A^1/2 B A^1/2, which are the singular values of
    A^1/2 B^1/2. These are computed directly: the product is never squared, so that small values keep their digits, and
    no root of a non-symmetric matrix is needed. Singular covariances are allowed. The square root of this distance is a
    metric; the distance itself, which everybody reports, is not.
    """
    if a.dim != b.dim:
        raise ShapeError(f"frechet_distance: {a.dim} features in a, {b.dim} in b; they come from different extractors")
    fewest = min(a.count, b.count)
    if fewest <= a.dim:
        warnings.warn(
            f"frechet_distance: {fewest} samples of {a.dim} features: the covariance is singular and the distance is "
            f"biased upwards; use more than {a.dim}, better ten times as many, or the kernel distance",
            FewSamplesWarning,
            stacklevel=2,
        )
    shift = a.mean - b.mean
    cross = torch.linalg.svdvals(_matrix_root(a.covariance) @ _matrix_root(b.covariance)).sum()
    distance = shift.dot(shift) + a.covariance.trace() + b.covariance.trace() - 2 * cross
    return max(0.0, float(distance))  # rounding can make it slightly negative for equal Gaussians


def _matrix_root(covariance: Tensor) -> Tensor:
    """The symmetric square root. Eigenvalues at rounding level, of either sign, count as zeros of a singular matrix."""
    values, vectors = torch.linalg.eigh(covariance)
    noise = values.abs().max() * torch.finfo(values.dtype).eps * values.numel()
    if values.min() < -max(float(noise), 1e-8 * float(values.abs().max())):
        raise InputError(
            f"frechet_distance: a covariance has the eigenvalue {float(values.min()):.3g} (largest "
            f"{float(values.max()):.3g}); a covariance has no negative eigenvalues"
        )
    return (vectors * values.where(values > noise, 0).sqrt()) @ vectors.mT


def _check_features(call: str, features: Tensor) -> Tensor:
    check_tensor(call, "features", features)
    check_shapes(call, features=(features, "b d"))
    finite = features.isfinite().all(1)
    if not finite.all():
        raise NotFiniteError(f"{call}: features must be finite, but sample {int((~finite).nonzero()[0])} is not")
    return features.detach().double()
