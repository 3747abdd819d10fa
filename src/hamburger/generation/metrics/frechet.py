"""Mean and covariance of features, collected in pieces, and the Frechet distance between two Gaussians.

Everything is float64: a sum of fifty thousand float32 features loses digits that the distance needs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import InputError, NotFiniteError, ShapeError, check_count
from hamburger.shapes import check_shapes, check_tensor


class FewSamplesWarning(UserWarning):
    """Fewer samples than features: the covariance is singular, and the distance far above that of more samples."""


@dataclass(frozen=True, eq=False)
class Gaussian:
    """What the Frechet distance knows of a set: `count` samples, `mean` (d), `covariance` (d d, divided by count - 1).

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
                f"Gaussian: a mean of d and a covariance of d d are needed, got {tuple(self.mean.shape)} and "
                f"{tuple(self.covariance.shape)}"
            )
        skew = float((self.covariance - self.covariance.mT).abs().max()) if self.dim else 0.0
        if skew > 1e-8 * float(self.covariance.abs().max()):
            raise InputError(f"Gaussian: the covariance must be symmetric; it differs from its transpose by {skew:.3g}")

    @property
    def dim(self) -> int:
        return self.mean.shape[0]


class Moments:
    """Mean and scatter of features that come in batches, in any split, and from several processes.

    Batches are merged as Chan, Golub and LeVeque do, by their means and their scatter about them: sums of squares,
    whose difference would cancel, are never formed. `device` is where the sums live.
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
        x = _samples("Moments.update", features).to(self.mean)
        if x.shape[1] != self.dim:
            raise ShapeError(f"Moments.update: needs {self.dim} features a sample, got {tuple(features.shape)} 'b d'")
        if x.shape[0]:
            mean = x.mean(0)
            centred = x - mean
            self._add(x.shape[0], mean, centred.mT @ centred)

    def merge(self, other: Moments) -> None:
        """Add what another one has collected; that one stays as it is."""
        if other.dim != self.dim:
            raise ShapeError(f"Moments.merge: {self.dim} features here, {other.dim} in the other")
        if other.count:
            self._add(other.count, other.mean.to(self.mean), other.scatter.to(self.mean))

    @torch.no_grad()
    def gather(self, device: torch.device | str = "cpu") -> None:
        """Add up what all processes have collected; `device` is where they meet. One that has nothing takes part too.

        Samples are counted as often as they were fed: a sampler that repeats some to make the shares even biases this.
        """
        if distributed.world() == 1:
            return
        own = self.mean.device
        share = torch.tensor(float(self.count), dtype=torch.float64, device=device)
        count = distributed.total(share)
        if count == 0:
            return
        mean = distributed.total(share * self.mean.to(device)) / count
        shift = self.mean.to(device) - mean
        scatter = distributed.total(self.scatter.to(device) + share * shift.outer(shift))
        self.count, self.mean, self.scatter = int(count), mean.to(own), scatter.to(own)

    def gaussian(self) -> Gaussian:
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


def gaussian(features: Tensor) -> Gaussian:
    """Mean and covariance of features that are all there.   n d"""
    x = _samples("gaussian", features)
    moments = Moments(x.shape[1])
    moments.update(x)
    return moments.gaussian()


def frechet_distance(a: Gaussian, b: Gaussian) -> float:
    """|m_a - m_b|^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2), the squared 2-Wasserstein distance of the two Gaussians.

    The last trace is the sum of the roots of the eigenvalues of A^1/2 B A^1/2, which are the singular values of
    A^1/2 B^1/2. They are taken as such: that product is never squared, so that small ones keep their digits, and no
    root of a matrix that is not symmetric is needed. Singular covariances are allowed. The root of the distance is a
    metric; the distance, which is what is reported everywhere, is not.
    """
    if a.dim != b.dim:
        raise ShapeError(f"frechet_distance: {a.dim} features in a, {b.dim} in b; they are of different extractors")
    fewest = min(a.count, b.count)
    if fewest <= a.dim:
        warnings.warn(
            f"frechet_distance: {fewest} samples of {a.dim} features: the covariance is singular and the distance is "
            f"biased upwards; use more than {a.dim}, better ten times as many, or the kernel distance",
            FewSamplesWarning,
            stacklevel=2,
        )
    shift = a.mean - b.mean
    cross = torch.linalg.svdvals(_root(a.covariance) @ _root(b.covariance)).sum()
    distance = shift.dot(shift) + a.covariance.trace() + b.covariance.trace() - 2 * cross
    return max(0.0, float(distance))  # of equal Gaussians, rounding can leave a little less than nothing


def _root(covariance: Tensor) -> Tensor:
    """The symmetric root. Eigenvalues at the level of rounding, of either sign, are zeros of a singular matrix."""
    values, vectors = torch.linalg.eigh(covariance)
    noise = values.abs().max() * torch.finfo(values.dtype).eps * values.numel()
    if values.min() < -max(float(noise), 1e-8 * float(values.abs().max())):
        raise InputError(
            f"frechet_distance: a covariance has the eigenvalue {float(values.min()):.3g} beside "
            f"{float(values.max()):.3g}; it is not one of any set of samples"
        )
    return (vectors * values.where(values > noise, 0).sqrt()) @ vectors.mT


def _samples(call: str, features: Tensor) -> Tensor:
    check_tensor(call, "features", features)
    check_shapes(call, features=(features, "b d"))
    finite = features.isfinite().all(1)
    if not finite.all():
        raise NotFiniteError(f"{call}: features must be finite, but sample {int((~finite).nonzero()[0])} is not")
    return features.detach().double()
