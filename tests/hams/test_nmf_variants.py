"""HALS, robust and learned NMF: what each adds to NMF, against independent programs and planted factors."""

from __future__ import annotations

import oracles
import pytest
import torch
from sklearn.decomposition import non_negative_factorization
from tolerances import assert_close, relative_error
from torch.autograd import gradcheck

import hamburger as hb


def planted(noise=0.0, r=3):
    g = torch.Generator().manual_seed(0)
    clean = torch.rand(1, 30, r, generator=g, dtype=torch.float64) @ torch.rand(
        1, r, 80, generator=g, dtype=torch.float64
    )
    return clean, clean + noise * torch.rand(clean.shape, generator=g, dtype=torch.float64)


# -- HALS --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 6, 50])
def test_hals_matches_the_coordinate_descent_of_sklearn(steps):
    x, bases = torch.rand(1, 20, 45, dtype=torch.float64), torch.rand(1, 20, 6, dtype=torch.float64)
    ham = hb.HALS(rank=6, eps=0.0)
    first = ham.init(x, bases)
    ours = ham.solve(x, first, steps)
    # it updates its left factor first, as we update the codes first: hand it the transposed problem
    codes, dictionary, _ = non_negative_factorization(
        x[0].T.numpy(),
        W=first.codes[0].T.contiguous().numpy(),
        H=first.bases[0].T.contiguous().numpy(),
        n_components=6,
        init="custom",
        solver="cd",
        max_iter=steps,
        tol=0,
        shuffle=False,
    )
    assert_close(ours.codes[0], torch.from_numpy(codes.T.copy()), slack=100)
    assert_close(ours.bases[0], torch.from_numpy(dictionary.T.copy()), slack=100)


@pytest.mark.parametrize("steps", [2, 6, 12])
def test_hals_is_nearer_than_nmf_after_the_same_steps(steps):
    _, x = planted(0.3)
    bases = torch.rand(1, 30, 3, dtype=torch.float64)
    errors = {
        name: relative_error(hb.decompose(x, name, rank=3, steps=steps, bases=bases).reconstruction, x)
        for name in ("hals", "nmf")
    }
    assert errors["hals"] < errors["nmf"]


def test_hals_revives_zeros_which_nmf_keeps():
    _, x = planted()
    bases = torch.rand(1, 30, 3, dtype=torch.float64)
    bases[:, 5] = 0
    assert (hb.decompose(x, "nmf", rank=3, bases=bases).bases[:, 5] == 0).all()
    assert (hb.decompose(x, "hals", rank=3, bases=bases).bases[:, 5] > 0).any()


# -- robust NMF --------------------------------------------------------------------------------------------------------


def test_robust_matches_the_oracle_with_its_options():
    x, bases = torch.rand(1, 12, 40, dtype=torch.float64), torch.rand(1, 12, 4, dtype=torch.float64)
    for options in ({"threshold": 0.2}, {"threshold": 0.2, "component": "sparse"}):
        out = hb.decompose(x, "robust", rank=4, bases=bases, **options).reconstruction
        assert_close(out[0], torch.from_numpy(oracles.robust(x[0].numpy(), bases[0].numpy(), 6, **options)[2]))


def test_robust_finds_the_outliers_and_the_clean_matrix():
    clean, _ = planted()
    outlier = torch.rand(clean.shape, generator=torch.Generator().manual_seed(1)) < 0.03
    x, bases = clean + 8 * outlier, torch.rand(1, 30, 3, dtype=torch.float64)
    out = {
        name: hb.decompose(x, ham, steps=60, bases=bases).reconstruction
        for name, ham in {
            "nmf": hb.NMF(rank=3),
            "robust": hb.Robust(rank=3, threshold=0.2),
            "sparse": hb.Robust(rank=3, threshold=0.2, component="sparse"),
        }.items()
    }
    assert relative_error(out["robust"], clean) < 0.5 * relative_error(out["nmf"], clean)
    assert ((out["sparse"].abs() > 2) == outlier).double().mean() > 0.99


def test_robust_scales_with_x_and_becomes_nmf_at_a_high_threshold():
    x, bases = torch.rand(2, 12, 40, dtype=torch.float64), torch.rand(2, 12, 4, dtype=torch.float64)
    ham = hb.Robust(rank=4, eps=0.0)
    factors = ham.init(x, bases)
    one, ten = (ham.step(s * x, hb.Factors(bases, s * factors.codes)) for s in (1, 10))
    assert_close(ten.bases, one.bases)
    assert_close(ten.codes, 10 * one.codes)
    far = hb.decompose(x, hb.Robust(rank=4, threshold=1e3), bases=bases)
    for ours, theirs in zip(far, hb.decompose(x, hb.NMF(rank=4), bases=bases), strict=True):
        assert_close(ours, theirs, slack=10)


# -- learned NMF -------------------------------------------------------------------------------------------------------


def test_learned_starts_as_nmf():
    x, bases = torch.rand(2, 12, 40, dtype=torch.float64), torch.rand(2, 12, 4, dtype=torch.float64)
    for ours, theirs in zip(
        hb.decompose(x, "learned", rank=4, bases=bases), hb.decompose(x, "nmf", rank=4, bases=bases), strict=True
    ):
        assert_close(ours, theirs, slack=10)


@pytest.mark.parametrize("keep", [0, 2, 6])
def test_learned_weights_match_the_oracle_in_every_step(keep):
    """Also where a gradient splits the solve in two: each step keeps its own number."""
    x, bases = torch.rand(1, 12, 40, dtype=torch.float64), torch.rand(1, 12, 4, dtype=torch.float64)
    weights = torch.randn(13, dtype=torch.float64)
    out = hb.decompose(x, hb.Learned(rank=4, weights=weights), bases=bases, grad=hb.Truncated(keep))
    theirs = oracles.learned(x[0].numpy(), bases[0].numpy(), 6, relaxations=(2 * weights.sigmoid()).numpy())
    for ours, reference in zip(out, theirs, strict=True):
        assert_close(ours[0], torch.from_numpy(reference), slack=100)


def test_steps_after_the_last_use_the_last_weight():
    x, bases = torch.rand(1, 12, 40, dtype=torch.float64), torch.rand(1, 12, 4, dtype=torch.float64)
    weights = torch.randn(5, dtype=torch.float64)
    longer = torch.cat([weights, weights[-1:].expand(4)])
    out = [hb.decompose(x, hb.Learned(rank=4, weights=w), steps=4, bases=bases).bases for w in (weights, longer)]
    assert torch.equal(*out)


def test_weights_pass_gradcheck_and_truncation_trains_the_last_ones():
    x, bases = torch.rand(1, 6, 9, dtype=torch.float64) + 0.1, torch.rand(1, 6, 3, dtype=torch.float64)
    weights = torch.randn(7, dtype=torch.float64, requires_grad=True)

    def solve(weights, grad="bptt"):
        return hb.decompose(
            x, hb.Learned(rank=3, weights=weights), steps=3, bases=bases, grad=grad
        ).reconstruction.square()

    assert gradcheck(solve, (weights,))
    for grad, trained in {"bptt": 7, "truncated:2": 5, "phantom:1": 3, "one-step": 1}.items():
        (gradient,) = torch.autograd.grad(solve(weights, grad).sum(), weights)
        assert gradient.ne(0).tolist() == [False] * (7 - trained) + [True] * trained, grad


def test_training_the_weights_lowers_the_error():
    torch.manual_seed(0)
    layer = hb.HamLayer(hb.Learned(rank=4), 16, steps=3, init="fixed")
    x = torch.rand(8, 16, 60)
    errors = []
    for _ in range(15):
        error = (layer(x) - x).square().mean()
        (gradient,) = torch.autograd.grad(error, list(layer.parameters()))
        with torch.no_grad():
            layer.relaxation -= 0.2 * gradient / gradient.norm()
        errors.append(error.item())
    assert errors[-1] < 0.99 * errors[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hb.Robust(threshold=0), "Robust: threshold must be a finite number above 0"),
        (lambda: hb.Robust(component="both"), "Robust: no component 'both'"),
        (lambda: hb.Learned(relaxation=2.0), r"Learned: relaxation must be below 2, got 2\.0"),
        (lambda: hb.Learned(weights=torch.zeros(4)), r"weights must be 2 K \+ 1 numbers .*got a tensor of \(4,\)"),
        (
            lambda: hb.Hamburger(8, ham=hb.Learned(rank=2, weights=torch.zeros(5)), steps=3),
            "a layer of 3 steps needs 7 weights, got 5",
        ),
        (
            lambda: hb.decompose(torch.rand(1, 4, 9), hb.Learned(rank=2), grad="implicit"),
            "Implicit: step sizes do not change a fixed point",
        ),
        (lambda: hb.Hamburger(8, ham="learned", rank=2, grad="implicit"), "take grad='bptt' or 'truncated:m'"),
    ],
)
def test_errors_name_call_and_remedy(call, message):
    with pytest.raises(hb.HamburgerError, match=message):
        call()
