"""Kernel distance (KID): squared maximum mean discrepancy with a cubic kernel, unbiased at any sample size.

Binkowski, Sutherland, Arbel, Gretton: Demystifying MMD GANs, 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger.errors import InputError, NotFiniteError, ShapeError, check_count
from hamburger.tensors import check_shapes, check_tensor

ROWS = 1024  # rows of a kernel matrix in memory at a time


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


def polynomial_kernel(x: Tensor, y: Tensor) -> Tensor:
    """(<x, y> / d + 1)^3 for all pairs.   x: n d    y: m d    ->    n m"""
    return (x @ y.mT / x.shape[1] + 1) ** 3


def mmd2(x: Tensor, y: Tensor) -> float:
    """Unbiased estimate of the squared maximum mean discrepancy from all pairs.   x: n d    y: m d

    The mean of k(x_i, x_j) over i != j, plus the same for y, minus twice the mean of k(x_i, y_j). Computed in float64,
    some rows at a time.
    """
    x, y = _check_features("mmd2", x, y)
    return _mmd2(x, y)


def kernel_distance(
    x: Tensor, y: Tensor, *, generator: torch.Generator, subsets: int = 100, subset_size: int = 1000
) -> KernelDistance:
    """KID between two sets of features.   x: n d    y: m d

    For each subset, `subset_size` samples are drawn without replacement from each set, x first. `generator` must be on
    the CPU, so that every device draws the same. The result is mean and standard error of their `mmd2`, not multiplied
    by 1000.
    """
    x, y = _check_features("kernel_distance", x, y)
    check_count("kernel_distance", "subsets", subsets, least=2)
    check_count("kernel_distance", "subset_size", subset_size, least=2)
    fewest = min(x.shape[0], y.shape[0])
    if subset_size > fewest:
        raise InputError(
            f"kernel_distance: subsets of {subset_size} from {fewest} samples; set subset_size to at most {fewest}"
        )
    if generator.device.type != "cpu":
        raise InputError(f"kernel_distance: generator must be on the CPU, got one on {generator.device}")
    values = torch.tensor(
        [
            _mmd2(_draw_subset(x, subset_size, generator), _draw_subset(y, subset_size, generator))
            for _ in range(subsets)
        ],
        dtype=torch.float64,
    )
    return KernelDistance(float(values.mean()), float(values.std() / subsets**0.5), subsets, subset_size)


def _mmd2(x: Tensor, y: Tensor) -> float:
    n, m = x.shape[0], y.shape[0]
    within = _sum_off_diagonal(x) / (n * (n - 1)) + _sum_off_diagonal(y) / (m * (m - 1))
    across = sum(float(polynomial_kernel(rows, y).sum()) for rows in x.split(ROWS)) / (n * m)
    return within - 2 * across


def _sum_off_diagonal(x: Tensor) -> float:
    """Sum of the kernel over all pairs of different samples."""
    total = 0.0
    for start in range(0, x.shape[0], ROWS):
        kernel = polynomial_kernel(x[start : start + ROWS], x)
        kernel.diagonal(start).zero_()  # zeroed, not subtracted: the diagonal is the largest part
        total += float(kernel.sum())
    return total


def _draw_subset(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return x[torch.randperm(x.shape[0], generator=generator)[:count].to(x.device)]


def _check_features(call: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    for name, value in (("x", x), ("y", y)):
        check_tensor(call, name, value)
        if value.dim() == 2 and value.shape[0] < 2:
            raise ShapeError(f"{call}: {name} needs at least 2 samples, got {tuple(value.shape)} 'n d'")
        if not value.isfinite().all():
            raise NotFiniteError(f"{call}: {name} must be finite, but it has NaN or infinity")
    check_shapes(call, x=(x, "n d"), y=(y, "m d"))
    return x.detach().double(), y.detach().double()
