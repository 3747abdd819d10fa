"""Values of the hams against independent programs."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import non_negative_factorization
from tolerances import RELATIVE, assert_close, relative_error

import hamburger as hb

NAMES = list(oracles.HAMS)


def start(name, b, d, r, dtype=torch.float64):
    bases = torch.rand(b, d, r, dtype=torch.float64)
    return (bases if hb.hams.create(name).nonnegative else bases - 0.5).to(dtype)


def soft(name, temperature):
    """Return the option `temperature` for hams that have it: at the default of 0.01 they amplify rounding."""
    return {"temperature": temperature} if hasattr(hb.hams.create(name), "temperature") else {}


def oracle(name, x, bases, steps, **options):
    """The oracle on every image of a batch."""
    outs = [
        oracles.HAMS[name](xi.double().numpy(), di.double().numpy(), steps, **options)
        for xi, di in zip(x, bases.expand(len(x), -1, -1), strict=True)
    ]
    return [torch.from_numpy(np.stack(part)) for part in zip(*outs, strict=True)]


@pytest.mark.parametrize("steps", [0, 1, 2, 6])
@pytest.mark.parametrize("shape", [(2, 16, 37, 5), (1, 8, 3, 6), (3, 5, 64, 9), (2, 7, 1, 4)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_ham_matches_the_numpy_oracle(name, shape, steps):
    b, d, n, r = shape
    x, bases = torch.rand(b, d, n, dtype=torch.float64), start(name, b, d, r)
    out = hb.decompose(x, name, rank=r, steps=steps, bases=bases)
    for ours, theirs in zip(out, oracle(name, x, bases, steps), strict=True):
        assert_close(ours, theirs, slack=100)  # six steps amplify the last bit


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("name", ["vq", "cd"])
def test_temperature_matches_the_paper(name, temperature):
    x, bases = torch.randn(2, 12, 40, dtype=torch.float64), start(name, 2, 12, 4)
    out = hb.decompose(x, name, rank=4, bases=bases, temperature=temperature)
    assert_close(out.reconstruction, oracle(name, x, bases, 6, temperature=temperature)[2], slack=100)


def solve_in_parts(ham, parts, bases, steps):
    """Decompose X whose positions are in several tensors: only sums over positions pass between the parts."""
    codes = [ham.init(part, bases).codes for part in parts]
    for _ in range(steps):
        factors = [hb.Factors(bases, code) for code in codes]
        codes = [ham.update_codes(part, each) for part, each in zip(parts, factors, strict=True)]
        sums = [ham.sum_positions(part, code) for part, code in zip(parts, codes, strict=True)]
        bases = ham.update_bases(bases, tuple(sum(terms) for terms in zip(*sums, strict=True)))
    return bases, [ham.readout(part, hb.Factors(bases, code)) for part, code in zip(parts, codes, strict=True)]


@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize("sizes", [(37,), (1, 20, 16)], ids=str)
@pytest.mark.parametrize("options", [{}, {"final_update": False}], ids=str)
@pytest.mark.parametrize("name", ["nmf", "vq", "cd", "hals"])
def test_positions_in_parts_give_the_same_factors(name, options, sizes, steps):
    if options and not hasattr(hb.hams.create(name), "final_update"):
        pytest.skip(f"{name} has no option final_update")
    ham = hb.hams.create(name, rank=5, **soft(name, 1.0), **options)
    x, bases = torch.rand(2, 16, sum(sizes), dtype=torch.float64), start(name, 2, 16, 5)
    expected = hb.decompose(x, ham, steps=steps, bases=bases)
    actual, codes = solve_in_parts(ham, x.split(sizes, dim=2), bases, steps)
    assert_close(actual, expected.bases, slack=100)
    assert_close(torch.cat(codes, dim=2), expected.codes, slack=100)


def test_a_ham_without_sums_says_that_it_has_no_parts():
    class Projection(hb.Ham):
        def step(self, x, factors):
            return factors

        def readout(self, x, factors):
            return factors.bases.mT @ x

    with pytest.raises(hb.OptionError, match="Projection does not define update_codes"):
        Projection(rank=2).sum_positions(torch.rand(1, 4, 6), torch.rand(1, 2, 6))


@pytest.mark.parametrize("name", ["robust", "local", "windowed", "learned"])
def test_hams_that_need_all_positions_refuse_parts(name):
    with pytest.raises(hb.OptionError, match=r"cannot decompose positions in parts; .*use NMF, HALS, VQ or CD"):
        hb.hams.create(name, rank=2).check_parts()


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0])
def test_cd_codes_match_ridge_regression(beta):
    x, bases = torch.randn(2, 12, 40, dtype=torch.float64), start("cd", 2, 12, 4)
    out = hb.decompose(x, "cd", rank=4, bases=bases, beta=beta)
    # the gradient of |X - D C|^2 + beta |C|^2 in C vanishes at the ridge solution
    slope = out.bases.mT @ (out.reconstruction - x) + beta * out.codes
    assert slope.abs().max() < 1e-12


def test_nmf_cosine_codes_match_the_paper():
    x, bases = torch.rand(2, 12, 40, dtype=torch.float64), start("nmf", 2, 12, 4)
    out = hb.decompose(x, hb.NMF(rank=4, codes_init="cosine"), bases=bases)
    assert_close(out.reconstruction, oracle("nmf", x, bases, 6, codes_init="cosine")[2], slack=100)


@pytest.mark.parametrize("steps", [1, 6, 50])
def test_nmf_matches_sklearn_from_the_same_factors(steps):
    x, bases = torch.rand(1, 20, 45, dtype=torch.float64), start("nmf", 1, 20, 6)
    ham = hb.NMF(rank=6, eps=0.0)  # scikit-learn guards only exact zeros
    first = ham.init(x, bases)
    ours = ham.solve(x, first, steps)
    # it updates its left factor first, as we update the codes first: hand it the transposed problem
    codes, dictionary, _ = non_negative_factorization(
        x[0].T.numpy(),
        W=first.codes[0].T.contiguous().numpy(),
        H=first.bases[0].T.contiguous().numpy(),
        n_components=6,
        init="custom",
        solver="mu",
        max_iter=steps,
        tol=0,
    )
    assert_close(ours.codes[0], torch.from_numpy(codes.T), slack=100)
    assert_close(ours.bases[0], torch.from_numpy(dictionary.T), slack=100)


def test_nmf_objective_never_increases():
    x = torch.rand(3, 20, 50, dtype=torch.float64)
    ham = hb.NMF(rank=5, eps=0.0)
    f = ham.init(x)
    last = torch.full((3,), torch.inf, dtype=torch.float64)
    for _ in range(40):
        codes = ham.readout(x, f)  # half a step
        swept = ham.step(x, f)
        assert torch.equal(swept.codes, codes)
        for factors in (hb.Factors(f.bases, codes), swept):
            loss = (x - factors.bases @ factors.codes).square().sum((1, 2))
            assert (loss <= last * (1 + 1e-12)).all()
            assert (factors.bases >= 0).all()
            assert (factors.codes >= 0).all()
            last = loss
        f = swept


def test_vq_codes_sum_to_one_and_become_hard_at_low_temperature():
    x = torch.randn(2, 10, 50, dtype=torch.float64)
    warm = hb.decompose(x, "vq", rank=4, temperature=0.5)
    assert_close(warm.codes.sum(1), torch.ones(2, 50, dtype=torch.float64))
    cold = hb.decompose(x, "vq", rank=4, temperature=1e-5, steps=30)
    nearest = torch.einsum("bdr,bdn->brn", cold.bases / cold.bases.norm(dim=1, keepdim=True), x).argmax(1)
    hard = torch.nn.functional.one_hot(nearest, 4).mT.double()
    assert_close(cold.codes, hard, slack=1e4)
    means = torch.einsum("bdn,brn->bdr", x, hard) / hard.sum(2)[:, None].clamp_min(1)
    assert_close(cold.bases, means, slack=1e5)  # 1e-6 in the denominator, see hams/cosine.py


def test_cd_bases_have_unit_columns():
    out = hb.decompose(torch.randn(2, 10, 50, dtype=torch.float64), "cd", rank=4, temperature=0.5)
    assert_close(out.bases.norm(dim=1), torch.ones(2, 4, dtype=torch.float64))


@pytest.mark.parametrize("dtype", list(RELATIVE), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_error_against_float64_is_within_tolerance(name, dtype):
    x, bases = torch.rand(2, 48, 300), start(name, 2, 48, 8, torch.float32)
    out = hb.decompose(x.to(dtype), name, rank=8, bases=bases, **soft(name, 0.1))
    assert out.reconstruction.dtype == dtype
    assert out.bases.dtype == out.codes.dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert_close(out.reconstruction, oracle(name, x, bases, 6, **soft(name, 0.1))[2])


@pytest.mark.parametrize("name", NAMES)
def test_reconstruction_is_the_product_of_the_factors(name):
    out = hb.decompose(torch.rand(2, 16, 37), name, rank=5)
    assert torch.equal(out.reconstruction, out.bases @ out.codes)


@given(
    name=st.sampled_from(NAMES),
    b=st.integers(1, 3),
    d=st.integers(1, 9),
    n=st.integers(1, 40),
    r=st.integers(1, 12),
    steps=st.integers(0, 4),
    layout=st.sampled_from(["plain", "transposed", "sliced", "expanded"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_decompose_takes_any_shape_dtype_and_stride(name, b, d, n, r, steps, layout, dtype):
    x = torch.rand(b, d, n, generator=torch.Generator().manual_seed(d * n + r)).to(dtype)
    view = {
        "plain": x,
        "transposed": x.mT.contiguous().mT,
        "sliced": torch.stack([x, -x], dim=3)[..., 0],
        "expanded": x[:, :, :1].expand(b, d, n),
    }[layout]
    bases = start(name, 1, d, r)
    out = hb.decompose(view, name, rank=r, steps=steps, bases=bases, **soft(name, 0.5))
    reference = oracle(name, view.contiguous(), bases, steps, **soft(name, 0.5))
    assert [t.shape for t in out] == [t.shape for t in reference]
    assert relative_error(out.reconstruction, reference[2]) <= 50 * RELATIVE[dtype]


@pytest.mark.parametrize("name", NAMES)
def test_generator_makes_the_solve_reproducible(name):
    x = torch.rand(2, 16, 37)
    ham = hb.hams.create(name, rank=5)
    draw = [hb.decompose(x, ham, generator=torch.Generator().manual_seed(s)).reconstruction for s in (1, 1, 2)]
    assert torch.equal(draw[0], draw[1])
    assert not torch.equal(draw[0], draw[2])
    torch.manual_seed(1)
    first = hb.decompose(x, ham).reconstruction
    torch.manual_seed(1)
    assert torch.equal(first, hb.decompose(x, ham).reconstruction)
    bases = ham.draw(1, 16, like=x)
    assert (bases.norm(dim=1) - 1).abs().max() < 1e-6
    assert (bases.min() >= 0) == ham.nonnegative


def test_given_bases_make_the_call_deterministic():
    x, bases = torch.rand(2, 16, 37), torch.rand(1, 16, 5)
    for codes_init in ("softmax", "cosine", "uniform"):
        ham = hb.NMF(rank=5, codes_init=codes_init)
        twice = [hb.decompose(x, ham, bases=bases).reconstruction for _ in range(2)]
        assert torch.equal(*twice)
        alone, batched = (hb.decompose(v, ham, bases=bases).bases[-1] for v in (x[1:], x))
        assert_close(alone, batched)  # a batch of one takes another matrix product: the last bits may differ
    g = torch.Generator().manual_seed(0)
    ham = hb.NMF(rank=5, codes_init="uniform")
    assert torch.equal(*(hb.decompose(x, ham, bases=bases, generator=g).reconstruction for _ in range(2)))
    drawn = [hb.decompose(x, hb.NMF(rank=5, codes_init="uniform")).reconstruction for _ in range(2)]
    assert not torch.equal(*drawn)


def test_deterministic_uniform_codes_are_uniform():
    codes = hb.NMF(rank=8, codes_init="uniform").init(torch.rand(1, 4, 4000), torch.rand(1, 4, 8)).codes[0]
    assert codes.shape == (8, 4000)
    assert (codes > 0).all() and (codes < 1).all()
    for row in codes:
        histogram = torch.histc(row, bins=10, min=0, max=1)
        assert (histogram - 400).abs().max() < 80  # four standard deviations


def test_uniform_code_sequences_are_independent():
    """Plain Weyl sequences form lattices: some pairs of 64 are correlated far more than by chance."""
    codes = hb.NMF(rank=64, codes_init="uniform").init(torch.rand(1, 4, 4000), torch.rand(1, 4, 64)).codes[0]
    correlation = torch.corrcoef(codes) - torch.eye(64)
    assert correlation.abs().max() < 6 / 4000**0.5
    shifted = torch.corrcoef(torch.cat([codes[:, 1:], codes[:, :-1]]))[:64, 64:]  # and none with its neighbour's past
    assert shifted.abs().max() < 6 / 4000**0.5


def test_one_dictionary_is_shared_by_a_batch():
    x, bases = torch.rand(3, 16, 37), torch.rand(1, 16, 5)
    shared = hb.decompose(x, "nmf", rank=5, bases=bases)
    apart = hb.decompose(x, "nmf", rank=5, bases=bases.expand(3, -1, -1))
    assert torch.equal(shared.reconstruction, apart.reconstruction)


@pytest.mark.parametrize("steps", [1, 2, 6])
@pytest.mark.parametrize("name", ["nmf", "vq"])
def test_final_update_false_returns_the_product_of_the_last_step(name, steps):
    x, bases = torch.rand(2, 13, 37, dtype=torch.float64), start(name, 2, 13, 5)
    out = hb.decompose(x, name, rank=5, steps=steps, bases=bases, final_update=False)
    for ours, theirs in zip(out, oracle(name, x, bases, steps, as_printed=True), strict=True):
        assert_close(ours, theirs, slack=100)
    usual = hb.decompose(x, name, rank=5, steps=steps, bases=bases)
    assert relative_error(out.codes, usual.codes) > 1e-4  # the extra update is what the option leaves out


@pytest.mark.parametrize("name", ["nmf", "vq"])
def test_final_update_false_differentiates_the_last_step(name):
    x, bases = torch.rand(1, 9, 20, dtype=torch.float64, requires_grad=True), start(name, 1, 9, 3)
    options = {"rank": 3, "bases": bases, "final_update": False}
    if name == "vq":
        options["temperature"] = 0.5
    gradients = [
        torch.autograd.grad(hb.decompose(x, name, grad=grad, **options).reconstruction.square().sum(), x)[0]
        for grad in ("one-step", "truncated:1")
    ]
    assert torch.equal(*gradients) and gradients[0].abs().max() > 0

    # Eq. 13: the last step alone, from factors that are constants
    with torch.no_grad():
        before = hb.decompose(x, name, steps=5, **options)
    ham = hb.hams.create(name, **{k: v for k, v in options.items() if k not in ("bases",)})
    after = ham.step(x, hb.Factors(before.bases, before.codes))
    (expected,) = torch.autograd.grad((after.bases @ after.codes).square().sum(), x)
    assert_close(gradients[0], expected, slack=100)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_nmf_cosine_codes_use_codes_temperature(temperature):
    x, bases = torch.rand(2, 12, 40, dtype=torch.float64), start("nmf", 2, 12, 4)
    out = hb.decompose(x, "nmf", rank=4, bases=bases, codes_init="cosine", codes_temperature=temperature)
    theirs = oracle("nmf", x, bases, 6, codes_init="cosine", codes_temperature=temperature)
    assert_close(out.reconstruction, theirs[2], slack=100)
