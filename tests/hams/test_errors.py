"""Bad input: the message names the call, the value, the rule and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import hamburger as hb

X = torch.rand(2, 8, 20)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hb.decompose(X, "nfm"), KeyError, "no ham 'nfm'; did you mean 'nmf'"),
        (lambda: hb.decompose(X, "nmf", rnak=3), TypeError, "no option 'rnak'; did you mean 'rank'"),
        (lambda: hb.decompose(X, "nmf", temperature=3), TypeError, "'nmf' has no option 'temperature'"),
        (lambda: hb.decompose(X, hb.NMF(), rank=3), TypeError, "cannot be combined with a ham value"),
        (
            lambda: hb.decompose(X, 3),
            TypeError,
            r"ham must be a name \(.*nmf, .*vq, windowed\) or a value such as hamburger.NMF",
        ),
        (lambda: hb.decompose(X, "nmf", grad="bppt"), TypeError, "did you mean 'bptt'"),
        (lambda: hb.decompose(X, "nmf", steps=-1), ValueError, "steps must be a whole number of at least 0, got -1"),
        (lambda: hb.decompose(X, "nmf", steps=1.5), ValueError, "got 1.5"),
        (lambda: hb.decompose(X[0], "nmf"), ValueError, r"x must have 3 axes 'b d n', got \(8, 20\)"),
        (lambda: hb.decompose(X[:, :0], "nmf"), ValueError, "at least one entry"),
        (lambda: hb.decompose(X.int(), "nmf"), ValueError, r"torch.int32; convert it with .float\(\)"),
        (lambda: hb.decompose(X - 0.5, "nmf"), ValueError, r"needs x >= 0, got a minimum of -0.*x.relu\(\)"),
        (lambda: hb.decompose(X, hb.NMF(4), bases=-torch.rand(2, 8, 4)), ValueError, "needs bases >= 0"),
        (
            lambda: hb.decompose(X, hb.NMF(4), bases=torch.rand(2, 8, 5)),
            ValueError,
            r"\(2 or 1, 8, 4\).*got \(2, 8, 5\)",
        ),
        (lambda: hb.decompose(X, hb.NMF(4), bases=torch.rand(3, 8, 4)), ValueError, r"got \(3, 8, 4\)"),
        (lambda: hb.decompose([[1.0]], "nmf"), TypeError, "x must be a torch.Tensor, got list"),
        (lambda: hb.decompose(X, hb.NMF(4), bases=[1]), TypeError, "bases must be a torch.Tensor, got list"),
        (lambda: hb.decompose(X, "nmf", generator=3), TypeError, "generator must be a torch.Generator, got int"),
        (lambda: hb.decompose(X, "nmf", grad=hb.Truncated), TypeError, "no gradient"),
        (lambda: hb.decompose(X, "nmf", grad="truncated:²"), TypeError, "no gradient"),
        (lambda: hb.decompose(X, "nmf", grad=None), TypeError, "no gradient None"),
        (lambda: hb.decompose(X, "NMF"), KeyError, "did you mean 'nmf'"),
        (lambda: hb.VQ(temperature="1"), TypeError, "temperature must be a finite number above 0, got '1'"),
        (lambda: hb.VQ(constant_norms="no"), TypeError, "constant_norms must be True or False, got 'no'"),
        (lambda: hb.NMF(rank="8"), TypeError, "rank must be a whole number of at least 1, got '8'"),
        (lambda: hb.NMF(rank=0), ValueError, "rank must be a whole number of at least 1, got 0"),
        (lambda: hb.NMF(eps=-1.0), ValueError, "eps"),
        (lambda: hb.NMF(codes_init="softmx"), ValueError, "did you mean 'softmax'"),
        (lambda: hb.VQ(temperature=0.0), ValueError, "temperature must be a finite number above 0, got 0"),
        (lambda: hb.CD(beta=float("nan")), ValueError, "beta"),
        (
            lambda: hb.decompose(X, "cd", rank=9, beta=0.0),
            ValueError,
            "rank must not exceed d and n.*rank=9.*d=8, n=20",
        ),
        (lambda: hb.Truncated(keep=-1), ValueError, "keep"),
        (lambda: hb.Implicit(tol=0.0), ValueError, "tol"),
    ],
)
def test_message(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", [name for name in hb.hams.names() if name != "windowed"])
def test_rank_above_n_and_d_is_allowed_where_possible(name):
    out = hb.decompose(X, name, rank=50)
    assert out.reconstruction.isfinite().all()
    assert out.codes.shape == (2, 50, 20)


@pytest.mark.parametrize("name", hb.hams.names())
def test_nan_stays_in_its_own_sample(name):
    x = X.clone()
    x[1, 2, 3] = torch.nan
    out = hb.decompose(x, name, rank=4).reconstruction
    assert out[1].isnan().any()
    assert out[0].isfinite().all()


def test_debug_names_the_first_bad_sample():
    x = torch.rand(4, 8, 20)
    x[2, 0, 5], x[3, 0, 0] = torch.inf, torch.nan
    with hb.debug(), pytest.raises(hb.NotFiniteError, match="x must be finite, but sample 2 of 4 has 0 NaN and 1 inf"):
        hb.decompose(x, "vq", rank=4)
    hb.decompose(x, "vq", rank=4)
    with hb.debug(), pytest.raises(hb.NotFiniteError, match="sample 3 of 4 has 1 NaN"):
        hb.Hamburger(8, rank=2)(torch.where(x.isinf(), 0, x))
    bases = torch.full((1, 8, 4), torch.nan)
    with hb.debug(), pytest.raises(hb.NotFiniteError, match="bases must be finite"):
        hb.decompose(torch.rand(4, 8, 20), hb.VQ(4), bases=bases)
    later = hb.debug()
    hb.debug(False)
    with later, pytest.raises(hb.NotFiniteError):
        hb.decompose(x, "vq", rank=4)
    try:
        hb.debug()
        with pytest.raises(hb.NotFiniteError):
            hb.decompose(x, "vq", rank=4)
    finally:
        hb.debug(False)


def test_user_ham_is_one_class():
    @dataclass(frozen=True)
    class Power(hb.Ham):
        """Truncated SVD by subspace iteration."""

        def step(self, x, f):
            return hb.Factors(torch.linalg.qr(x @ (x.mT @ f.bases))[0])

        def readout(self, x, f):
            return f.bases.mT @ x

    hb.hams.register("test-power")(Power)
    try:
        x = torch.randn(2, 12, 30, dtype=torch.float64)
        out = hb.decompose(x, "test-power", rank=3, steps=200)
        u, s, v = torch.linalg.svd(x)
        best = u[..., :3] * s[:, None, :3] @ v[:, :3]
        assert (out.reconstruction - best).norm() < 1e-6 * best.norm()
        layer = hb.Hamburger(12, ham="test-power", rank=3, heads=2).eval()
        assert layer(torch.randn(2, 12, 5, 6)).shape == (2, 12, 5, 6)
        with pytest.raises(ValueError, match="already a ham 'test-power'"):
            hb.hams.register("test-power")(Power)
    finally:
        del hb.hams._entries["test-power"]
