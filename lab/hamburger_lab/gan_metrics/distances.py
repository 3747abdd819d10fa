"""Distances between two sets of features: Frechet distance, kernel distance (KID), precision and recall.

Everything is float64: a sum of fifty thousand features in float32 loses digits that the distances need.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger.errors import InputError, NotFiniteError, OptionError, ShapeError, check_count
from hamburger.tensors import check_shapes, check_tensor

PAIRS = 2**23  # distances between neighbours in memory at a time: 64 MiB


def check_features(call: str, **features: Tensor) -> list[Tensor]:
    """One or two sets of features as float64; raise unless they are 'n d' and 'm d', and finite."""
    for name, value in features.items():
        check_tensor(call, name, value)
    check_shapes(call, **{name: (value, f"{n} d") for n, (name, value) in zip("nm", features.items(), strict=False)})
    for name, value in features.items():
        finite = value.isfinite().all(1)
        if not finite.all():
            raise NotFiniteError(f"{call}: {name} must be finite, but sample {int((~finite).nonzero()[0])} is not")
    return [value.detach().double() for value in features.values()]


# -- Frechet distance --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Statistics of `count` features, float64 on the CPU: `mean` (d) and `covariance` (d d, divided by count - 1)."""

    count: int
    mean: Tensor
    covariance: Tensor


class Moments:
    """Accumulates mean and scatter of features over batches of any size.

    Batches are merged by their means and the scatter about them (Chan, Golub and LeVeque): differences of large sums of
    squares, which lose digits, never occur. `device` holds the sums.
    """

    def __init__(self, dim: int, *, device: torch.device | str = "cpu") -> None:
        self.count = 0
        self.mean = torch.zeros(dim, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, features: Tensor) -> None:
        """Add a batch.   features: b d; b may be 0"""
        (x,) = check_features("Moments.update", features=features)
        if x.shape[1] != len(self.mean):
            raise ShapeError(f"Moments.update: needs {len(self.mean)} features a sample, got {tuple(x.shape)} 'b d'")
        if not len(x):
            return
        x = x.to(self.mean.device)
        mean = x.mean(0)
        centred, shift, total = x - mean, mean - self.mean, self.count + len(x)
        self.mean = self.mean + shift * (len(x) / total)
        self.scatter = self.scatter + centred.mT @ centred + shift.outer(shift) * (self.count * len(x) / total)
        self.count = total

    def gaussian(self) -> Gaussian:
        """Mean and covariance of the samples so far."""
        if self.count < 2:
            raise InputError(f"Moments.gaussian: a covariance needs at least 2 samples, got {self.count}")
        covariance = self.scatter / (self.count - 1)
        return Gaussian(self.count, self.mean.cpu(), ((covariance + covariance.mT) / 2).cpu())


def frechet_distance(a: Gaussian, b: Gaussian) -> float:
    """|m_a - m_b|^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2), the squared 2-Wasserstein distance of two Gaussians.

    The last trace sums the square roots of the eigenvalues of A^1/2 B A^1/2, which are the singular values of
    A^1/2 B^1/2. These are computed directly: the product is never squared, so that small values keep their digits, and
    no root of a non-symmetric matrix is needed. Singular covariances are allowed. The square root of this distance is a
    metric; the distance itself, which papers report, is not.
    """
    dim, fewest = len(a.mean), min(a.count, b.count)
    if len(b.mean) != dim:
        raise ShapeError(
            f"frechet_distance: {dim} features in a, {len(b.mean)} in b; they come from different extractors"
        )
    if fewest <= dim:
        warnings.warn(
            f"frechet_distance: {fewest} samples of {dim} features: the covariance is singular and the distance is "
            f"biased upwards; use more than {dim}, better ten times as many, or the kernel distance",
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


# -- kernel distance (Binkowski et al.: Demystifying MMD GANs, 2018) ---------------------------------------------------


@dataclass(frozen=True)
class KernelDistance:
    """Mean over the subsets and the standard error of that mean.

    The error is that of drawing subsets from the given features. Subsets overlap, so it does not measure the variation
    between sets of images. `mean` may be negative: an unbiased estimate of 0 is negative half of the time.
    """

    mean: float
    standard_error: float
    subsets: int
    subset_size: int

    @property
    def subset_std(self) -> float:
        """Standard deviation over the subsets, which papers and other packages report with a KID."""
        return self.standard_error * self.subsets**0.5


def kernel_distance(
    x: Tensor, y: Tensor, *, generator: torch.Generator, subsets: int = 100, subset_size: int = 1000
) -> KernelDistance:
    """KID between two sets of features: the squared maximum mean discrepancy with a cubic kernel.   x: n d    y: m d

    For each subset, `subset_size` samples are drawn without replacement from each set, x first. `generator` must be on
    the CPU, so that every device draws the same. The result is mean and standard error of their `mmd2`, not multiplied
    by 1000.
    """
    x, y = check_features("kernel_distance", x=x, y=y)
    check_count("kernel_distance", "subsets", subsets, least=2)
    check_count("kernel_distance", "subset_size", subset_size, least=2)
    fewest = min(len(x), len(y))
    if subset_size > fewest:
        raise InputError(
            f"kernel_distance: subsets of {subset_size} from {fewest} samples; set subset_size to at most {fewest}"
        )

    def draw(z: Tensor) -> Tensor:
        return z[torch.randperm(len(z), generator=generator)[:subset_size].to(z.device)]

    values = torch.tensor([mmd2(draw(x), draw(y)) for _ in range(subsets)], dtype=torch.float64)
    return KernelDistance(float(values.mean()), float(values.std() / subsets**0.5), subsets, subset_size)


def mmd2(x: Tensor, y: Tensor) -> float:
    """Unbiased estimate of the squared maximum mean discrepancy from all pairs.   x: n d    y: m d

    The mean of k(x_i, x_j) over i != j, plus the same for y, minus twice the mean of k(x_i, y_j). Computed in float64.
    """
    x, y = x.detach().double(), y.detach().double()
    n, m = len(x), len(y)
    within = _sum_off_diagonal(x) / (n * (n - 1)) + _sum_off_diagonal(y) / (m * (m - 1))
    across = float(polynomial_kernel(x, y).sum()) / (n * m)
    return within - 2 * across


def polynomial_kernel(x: Tensor, y: Tensor) -> Tensor:
    """(<x, y> / d + 1)^3 for all pairs.   x: n d    y: m d    ->    n m"""
    return (x @ y.mT / x.shape[1] + 1) ** 3


def _sum_off_diagonal(x: Tensor) -> float:
    """Sum of the kernel over all pairs of different samples."""
    kernel = polynomial_kernel(x, x)
    kernel.diagonal().zero_()  # zeroed, not subtracted: the diagonal is the largest part
    return float(kernel.sum())


# -- precision and recall (Kynkaanniemi et al.: Improved precision and recall metric, 2019) ----------------------------


@dataclass(frozen=True)
class PrecisionRecall:
    """`precision`: fraction of fake samples in a real neighbourhood; `recall`: of real samples in a fake one."""

    precision: float
    recall: float
    k: int


def precision_recall(real: Tensor, fake: Tensor, *, k: int = 3) -> PrecisionRecall:
    """The fraction of one set that lies within the neighbourhoods of the other.   real: n d    fake: m d

    The neighbourhood of a sample is the closed ball up to the k-th nearest other sample of its set. Both values depend
    on n and m: compare only results of the same sizes. Distances are computed in float64 from differences, not from
    products, so that equal samples have distance 0.
    """
    real, fake = check_features("precision_recall", real=real, fake=fake)
    check_count("precision_recall", "k", k, least=1)
    fewest = min(len(real), len(fake))
    if fewest <= k:
        raise OptionError(f"precision_recall: the {k}-th neighbour needs more than {k} samples, got {fewest}; lower k")
    return PrecisionRecall(
        precision=float(find_covered(fake, real, neighbour_radii(real, k)).double().mean()),
        recall=float(find_covered(real, fake, neighbour_radii(fake, k)).double().mean()),
        k=k,
    )


def neighbour_radii(x: Tensor, k: int) -> Tensor:
    """Distance of each sample to its k-th nearest other one; copies count as others.   n d    ->    n"""
    # the distance 0 to itself is the smallest in a row, so the k-th other one is number k + 1
    return torch.cat([_distances(rows, x).kthvalue(k + 1).values for rows in _blocks(x, len(x))])


def find_covered(x: Tensor, centres: Tensor, radius: Tensor) -> Tensor:
    """Whether each sample lies in a ball around some centre.   x: n d    centres: m d    radius: m    ->    n, bool"""
    return torch.cat([(_distances(rows, centres) <= radius).any(1) for rows in _blocks(x, len(centres))])


def _blocks(x: Tensor, others: int) -> tuple[Tensor, ...]:
    return x.split(max(1, PAIRS // others))


def _distances(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
