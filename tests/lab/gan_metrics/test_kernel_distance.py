"""The cubic kernel's discrepancy against loops over pairs, and its expectation."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hamburger.errors import InputError, NotFiniteError, OptionError, ShapeError
from hamburger_lab.gan_metrics import distances as module
from hamburger_lab.gan_metrics.distances import kernel_distance, mmd2


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def by_loops(x, y):
    def k(a, b):
        return (sum(p * q for p, q in zip(a, b, strict=True)) / len(a) + 1) ** 3

    x, y = x.tolist(), y.tolist()
    n, m = len(x), len(y)
    xx = sum(k(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    yy = sum(k(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return xx + yy - 2 * sum(k(a, b) for a in x for b in y) / (n * m)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(1, 5), st.integers(0, 10**6))
def test_kernel_distance_matches_a_double_loop(n, m, d, seed):
    torch.manual_seed(seed)
    x, y = torch.randn(n, d).double(), torch.randn(m, d).double() + 1
    assert mmd2(x, y) == pytest.approx(by_loops(x, y), rel=1e-10, abs=1e-10)


def test_unbiased_over_all_draws_of_a_small_population():
    """Every pair of samples (with replacement) of two small populations: the mean is the population's discrepancy."""
    p, q = torch.tensor([[0.0], [1.0], [3.0]]).double(), torch.tensor([[1.0], [2.0]]).double()
    values = [
        mmd2(p[list(i)], q[list(j)])
        for i in itertools.product(range(3), repeat=2)
        for j in itertools.product(range(2), repeat=3)
    ]
    k = module.polynomial_kernel
    expected = float(k(p, p).mean() + k(q, q).mean() - 2 * k(p, q).mean())
    assert sum(values) / len(values) == pytest.approx(expected, rel=1e-12)


def test_the_same_distribution_is_near_zero_and_another_is_not():
    x, y, other = torch.randn(600, 16), torch.randn(600, 16), torch.randn(600, 16) + 0.5
    same = kernel_distance(x, y, generator=seeded(), subsets=50, subset_size=200)
    moved = kernel_distance(x, other, generator=seeded(), subsets=50, subset_size=200)
    assert abs(same.mean) < 0.03
    assert moved.mean > 10 * abs(same.mean)
    assert moved.mean > 20 * moved.standard_error > 0


def test_an_unbiased_zero_is_negative_about_half_the_time():
    values = [mmd2(torch.randn(20, 4), torch.randn(20, 4)) for _ in range(200)]
    assert 60 < sum(v < 0 for v in values) < 160
    mean = sum(values) / 200
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / 199 / 200)
    assert abs(mean) < 4 * error


def test_mean_and_standard_error_of_the_subsets():
    x, y = torch.randn(40, 3), torch.randn(30, 3)
    result = kernel_distance(x, y, generator=seeded(5), subsets=7, subset_size=10)
    generator, values = seeded(5), []
    for _ in range(7):
        i = torch.randperm(40, generator=generator)[:10]
        j = torch.randperm(30, generator=generator)[:10]
        values.append(mmd2(x[i], y[j]))
    mean = sum(values) / 7
    assert result.mean == pytest.approx(mean, rel=1e-12)
    assert result.standard_error == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 6 / 7), rel=1e-12)
    assert result.subset_std == pytest.approx(statistics.stdev(values), rel=1e-12)
    assert (result.subsets, result.subset_size) == (7, 10)


def test_the_generator_alone_decides():
    x, y = torch.randn(40, 3), torch.randn(30, 3)
    first = kernel_distance(x, y, generator=seeded(1), subsets=3, subset_size=10)
    torch.manual_seed(99)
    assert kernel_distance(x, y, generator=seeded(1), subsets=3, subset_size=10) == first
    assert kernel_distance(x, y, generator=seeded(2), subsets=3, subset_size=10) != first


def test_kernel_distance_matches_torchmetrics():
    kid = pytest.importorskip("torchmetrics.image.kid")
    x, y = torch.randn(30, 6).double(), torch.randn(30, 6).double()
    assert mmd2(x, y) == pytest.approx(float(kid.poly_mmd(x, y)), rel=1e-10)


def test_mistakes_are_named():
    x = torch.randn(10, 3)
    with pytest.raises(InputError, match="at most 10"):
        kernel_distance(x, x, generator=seeded())
    with pytest.raises(OptionError, match="subsets"):
        kernel_distance(x, x, generator=seeded(), subsets=1, subset_size=5)
    with pytest.raises(ShapeError):
        kernel_distance(x, torch.randn(10, 4), generator=seeded())
    with pytest.raises(NotFiniteError, match="y must be finite"):
        kernel_distance(x, x / 0, generator=seeded())
