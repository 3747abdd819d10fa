"""Moments over batches against moments at once; distances against closed forms and three other implementations."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from gaussians import fit_gaussian
from hypothesis import given
from hypothesis import strategies as st

from hamburger.errors import InputError, NotFiniteError, ShapeError
from hamburger_lab.gan_metrics.distances import Gaussian, Moments, frechet_distance

ENOUGH = 10**6


def covariance(d, rank=None, scale=1.0):
    x = torch.randn(d, rank or d, dtype=torch.float64)
    return scale * x @ x.mT / (rank or d)


def normal(mean, cov, count=ENOUGH):
    return Gaussian(count, torch.as_tensor(mean, dtype=torch.float64), torch.as_tensor(cov, dtype=torch.float64))


def by_numpy(a, b):
    """By the roots of the eigenvalues of A B, which is not symmetric: another way to the same trace."""
    roots = np.sqrt(np.linalg.eigvals(a.covariance.numpy() @ b.covariance.numpy()).astype(complex)).real
    shift = a.mean.numpy() - b.mean.numpy()
    return shift @ shift + np.trace(a.covariance.numpy()) + np.trace(b.covariance.numpy()) - 2 * roots.sum()


def test_one_dimension_in_closed_form():
    a, b = normal([1.0], [[4.0]]), normal([3.5], [[9.0]])
    assert frechet_distance(a, b) == pytest.approx(2.5**2 + (2 - 3) ** 2, rel=1e-14)


def test_commuting_covariances_in_closed_form():
    """In a common basis the distance is a sum over axes of (root of a - root of b) squared."""
    d = 20
    basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    p, q = torch.rand(2, d, dtype=torch.float64) * 10
    m, n = torch.randn(2, d, dtype=torch.float64)
    a, b = normal(m, basis @ p.diag() @ basis.mT), normal(n, basis @ q.diag() @ basis.mT)
    expected = float(((m - n) ** 2).sum() + ((p.sqrt() - q.sqrt()) ** 2).sum())
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-12)


def test_two_by_two_that_do_not_commute_in_closed_form():
    """For 2 x 2, tr sqrt(M) = sqrt(tr M + 2 sqrt(det M)) with M = A B."""
    a, b = torch.tensor([[2.0, 0.9], [0.9, 1.0]]).double(), torch.tensor([[1.0, -0.7], [-0.7, 3.0]]).double()
    assert not torch.allclose(a @ b, b @ a)
    trace, det = (a @ b).trace(), torch.linalg.det(a @ b)
    expected = float(a.trace() + b.trace() - 2 * (trace + 2 * det.sqrt()).sqrt())
    assert frechet_distance(normal([0.0, 0.0], a), normal([0.0, 0.0], b)) == pytest.approx(expected, rel=1e-13)


@given(st.integers(1, 24), st.integers(0, 10**6), st.sampled_from([1e-6, 1.0, 1e6]))
def test_against_numpy_and_the_axioms_of_a_distance(d, seed, scale):
    torch.manual_seed(seed)
    a = normal(torch.randn(d) * scale**0.5, covariance(d, scale=scale))
    b = normal(torch.randn(d) * scale**0.5, covariance(d, scale=scale))
    distance = frechet_distance(a, b)
    size = float(a.covariance.trace() + b.covariance.trace())
    assert distance == pytest.approx(by_numpy(a, b), rel=1e-6, abs=1e-6 * size)
    assert distance == pytest.approx(frechet_distance(b, a), rel=1e-10)
    assert 0 <= frechet_distance(a, a) <= 1e-12 * size


def test_against_scipy():
    linalg = pytest.importorskip("scipy.linalg")
    d = 64
    a, b = normal(torch.randn(d), covariance(d)), normal(torch.randn(d), covariance(d))
    root = linalg.sqrtm(a.covariance.numpy() @ b.covariance.numpy()).real
    shift = (a.mean - b.mean).numpy()
    expected = shift @ shift + np.trace(a.covariance.numpy() + b.covariance.numpy() - 2 * root)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-8)


def test_against_torchmetrics():
    fid = pytest.importorskip("torchmetrics.image.fid")

    class Pixels(torch.nn.Module):
        num_features = 12

        def forward(self, x):
            return x.flatten(1).double()

    real, fake = torch.rand(2, 200, 3, 2, 2, dtype=torch.float64)
    theirs = fid.FrechetInceptionDistance(feature=Pixels(), normalize=True, input_img_size=(3, 2, 2))
    theirs.set_dtype(torch.float64)
    theirs.update(real, real=True)
    theirs.update(fake, real=False)
    ours = frechet_distance(fit_gaussian(real.flatten(1)), fit_gaussian(fake.flatten(1)))
    assert ours == pytest.approx(float(theirs.compute()), rel=1e-6)


@pytest.mark.parametrize("rank", [1, 5, 19])
def test_singular_covariances_lose_no_digits(rank):
    """The distance of equal singular Gaussians is 0; that of orthogonal ones is the sum of their traces."""
    d = 40
    flat = covariance(d, rank)
    assert frechet_distance(normal(torch.zeros(d), flat), normal(torch.zeros(d), flat)) < 1e-12 * float(flat.trace())
    left, right = torch.zeros(2, d, d, dtype=torch.float64)
    left[:20, :20], right[20:, 20:] = covariance(20, rank), covariance(20, rank)
    turn = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    a, b = turn @ left @ turn.mT, turn @ right @ turn.mT
    a, b = (a + a.mT) / 2, (b + b.mT) / 2
    expected = float(a.trace() + b.trace())
    assert frechet_distance(normal(torch.zeros(d), a), normal(torch.zeros(d), b)) == pytest.approx(expected, rel=1e-10)


def test_all_samples_equal():
    point = fit_gaussian(torch.ones(10, 3))
    assert frechet_distance(point, point) == 0
    assert frechet_distance(point, fit_gaussian(torch.full((10, 3), 3.0))) == pytest.approx(12)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 10**6), st.sampled_from([0.0, 1e3, 1e6]))
def test_any_split_gives_the_moments_of_the_whole(cuts, seed, offset):
    torch.manual_seed(seed)
    cuts = [*cuts, 2]
    x = torch.randn(sum(cuts), 5, dtype=torch.float64) + offset
    moments = Moments(5)
    for part in x.split(cuts):
        moments.update(part)
    actual, noise = moments.gaussian(), 1e-12 + 1e-15 * offset
    assert actual.count == x.shape[0]
    assert actual.mean.numpy() == pytest.approx(x.numpy().mean(0), rel=1e-14, abs=1e-14)
    assert actual.covariance.numpy() == pytest.approx(np.cov(x.numpy().T), rel=noise * 100, abs=noise * 100)


def test_float32_features_far_from_zero_keep_their_spread():
    """Sums of squares in float32 would have no correct digit here."""
    x = (4096 + torch.randn(1000, 3) * 0.01).float()
    actual = fit_gaussian(x).covariance
    assert actual.numpy() == pytest.approx(np.cov(x.double().numpy().T), rel=1e-9, abs=1e-15)


def test_too_few_samples_warn():
    few, many = fit_gaussian(torch.randn(8, 8)), fit_gaussian(torch.randn(90, 8))
    with pytest.warns(UserWarning, match="8 samples of 8 features"):
        assert math.isfinite(frechet_distance(few, many))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frechet_distance(many, many)
    with pytest.raises(InputError, match="at least 2 samples, got 1"):
        fit_gaussian(torch.randn(1, 4))
    with pytest.raises(InputError, match="got 0"):
        Moments(3).gaussian()


def test_error_messages():
    with pytest.raises(NotFiniteError, match="sample 2"):
        fit_gaussian(torch.tensor([[1.0], [2.0], [math.nan]]))
    with pytest.raises(ShapeError, match="different extractors"):
        frechet_distance(normal(torch.zeros(2), torch.eye(2)), normal(torch.zeros(3), torch.eye(3)))
    with pytest.raises(ShapeError):
        Moments(3).update(torch.rand(4, 2))
    with pytest.raises(InputError, match="eigenvalue"):
        frechet_distance(normal(torch.zeros(2), torch.tensor([1.0, -1.0]).diag()), normal(torch.zeros(2), torch.eye(2)))
    with pytest.raises(InputError):
        fit_gaussian(torch.zeros(4, 2, dtype=torch.int64))
