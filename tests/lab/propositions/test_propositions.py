"""The measurements, compared with a ham whose constants are known and with the library's gradients."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from hamburger import CD, NMF, VQ, Factors, Ham, OptionError, ShapeError
from hamburger_lab.propositions.fixed_point import (
    FixedPointIteration,
    jacobian_spectrum,
    jacobians,
    measure_contraction,
    measure_gradient_terms,
)
from hamburger_lab.propositions.gradients import compare_gradients, fixed_point_gradient, input_gradient
from hamburger_lab.propositions.study import feature_map, low_rank

D, N, R = 6, 10, 2
EIGENVALUES = torch.tensor([0.5, 0.4, -0.3, 0.2, 0.1, 0.0], dtype=torch.float64)


@dataclass(frozen=True)
class Linear(Ham):
    """D <- A D + X W with A symmetric: L_h is the largest |eigenvalue|, and D* = (I - A)^-1 X W."""

    rank: int = R

    @property
    def a(self):
        turn = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
        return turn @ EIGENVALUES.diag() @ turn.mT

    @property
    def w(self):
        return torch.randn(N, R, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def step(self, x, factors):
        return Factors(self.a @ factors.bases + x @ self.w)

    def readout(self, x, factors):
        return self.w.mT.expand(len(x), -1, -1)  # codes that do not depend on x: y = D W^T, the paper's G(h)


def solve_of(ham, d=D, n=N, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(1, d, n, generator=draw, dtype=torch.float64)
    u = torch.randn(1, d, n, generator=draw, dtype=torch.float64)
    return x, ham.draw(1, d, like=x, generator=draw), u


HAMS = [NMF(R), NMF(R, codes_init="cosine"), VQ(R, temperature=0.1), CD(R, temperature=0.1), Linear()]


def test_linear_ham_contracts_by_its_constant():
    x, bases, _ = solve_of(Linear())
    result = measure_contraction(x, Linear(), bases, 60)
    assert result.rate == pytest.approx(0.5, rel=1e-3)
    assert max(result.ratios) <= 0.5 + 1e-4  # the last updates have four digits above round-off
    assert result.find_convergence_step(1e-10) < 40
    assert result.find_convergence_step(0.0) is None or result.find_convergence_step(0.0) > 40


def test_linear_ham_has_the_spectrum_of_its_matrix():
    x, bases, _ = solve_of(Linear())
    result = jacobian_spectrum(x, Linear(), bases, 3)
    want = EIGENVALUES.repeat_interleave(R)
    torch.testing.assert_close(result.eigenvalues.real.sort().values, want.sort().values)
    assert result.radius == pytest.approx(0.5)
    assert result.operator_norm == pytest.approx(0.5)
    assert result.at_one(1e-6) == 0


def test_implicit_gradient_of_a_linear_ham_matches_the_closed_form():
    ham = Linear()
    x, bases, u = solve_of(ham)
    inverse = torch.linalg.inv(torch.eye(D, dtype=torch.float64) - ham.a)
    want = (inverse.mT @ u[0] @ ham.w @ ham.w.mT).flatten()  # of <u, (I - A)^-1 X W W^T>
    torch.testing.assert_close(fixed_point_gradient(x, ham, bases, 60, u), want)
    torch.testing.assert_close(input_gradient(x, ham, bases, 60, "implicit", u), want, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(input_gradient(x, ham, bases, 60, "bptt", u), want)


def test_linear_ham_satisfies_the_bound_of_proposition_3():
    x, bases, _ = solve_of(Linear())
    result = measure_gradient_terms(x, Linear(), bases, 20)
    l_h, l_x, l_g = result.lipschitz
    assert l_h == pytest.approx(0.5)
    assert result.through_steps <= result.bound == pytest.approx(l_g * l_x / 0.5)
    assert result.by_start <= l_g * l_h**20 * (1 + 1e-9)
    assert result.envelope == pytest.approx(0.5, rel=1e-6)
    assert result.direct == result.start == 0


@pytest.mark.parametrize("ham", HAMS, ids=str)
def test_jacobians_match_finite_differences(ham):
    x, bases, _ = solve_of(ham)
    flow = FixedPointIteration(x, ham, bases)
    h = flow.path(2)[-1]
    step = 1e-6
    for function in (flow.step, flow.output):
        by_state, by_input = jacobians(function, h, x)
        to_h, to_x = torch.randn_like(h), torch.randn_like(x)
        ahead, behind = (function(h + s * to_h, x + s * to_x) for s in (step, -step))
        want = (ahead - behind) / (2 * step)
        torch.testing.assert_close(by_state @ to_h + by_input @ to_x.flatten(), want, rtol=1e-6, atol=1e-6)


def dense_parts(ham, x, bases, steps):
    """dy/dx through the read-out, through each step from the last to the first, and through h^0."""
    flow = FixedPointIteration(x, ham, bases)
    *path, last = flow.path(steps)
    left, direct = jacobians(flow.output, last, x)
    terms = []
    for h in reversed(path):
        by_state, by_input = jacobians(flow.step, h, x)
        terms.append(left @ by_input)
        left = left @ by_state
    return direct, terms, left @ torch.func.jacrev(flow.start)(x).flatten(1)


@pytest.mark.parametrize("ham", HAMS, ids=str)
def test_gradient_terms_add_up_to_bptt(ham):
    x, bases, u = solve_of(ham)
    direct, terms, start = dense_parts(ham, x, bases, 5)
    for gradient, part in (
        ("bptt", direct + sum(terms) + start),
        ("one-step", direct),
        ("truncated:1", direct + terms[0]),
    ):
        torch.testing.assert_close(u.flatten() @ part, input_gradient(x, ham, bases, 5, gradient, u))
    assert (start.norm() > 0) == ham.scale_free  # only NMF makes its first state from x


@pytest.mark.parametrize("ham", HAMS, ids=str)
def test_operator_norms_match_the_dense_terms(ham):
    x, bases, _ = solve_of(ham)
    result = measure_gradient_terms(x, ham, bases, 3)
    direct, terms, start = dense_parts(ham, x, bases, 3)
    for norm, matrix in (
        *zip(result.norms, terms, strict=True),
        (result.direct, direct),
        (result.start, start),
        (result.through_steps, sum(terms)),
    ):
        assert norm == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-6, abs=1e-12)


def test_nmf_has_r_eigenvalues_at_1_unless_columns_are_normalised():
    ham, x = NMF(4), feature_map(0)
    bases = ham.draw(1, 16, like=x, generator=torch.Generator().manual_seed(0))
    free = jacobian_spectrum(x, ham, bases, 2000)
    fixed = jacobian_spectrum(x, ham, bases, 2000, unit_columns=True)
    assert free.at_one(1e-6) == 4
    assert fixed.at_one(1e-6) == 0
    assert fixed.radius < 0.998
    # the rest of the spectrum is the same map in other coordinates
    torch.testing.assert_close(free.eigenvalues[4:7].abs(), fixed.eigenvalues[:3].abs(), rtol=1e-4, atol=1e-4)


def test_vq_and_cd_steps_are_one_map_in_two_coordinates():
    x = feature_map(1)
    bases = VQ(4).draw(1, 16, like=x, generator=torch.Generator().manual_seed(0))
    vq, cd = (jacobian_spectrum(x, kind(4, temperature=0.1), bases, 400) for kind in (VQ, CD))
    torch.testing.assert_close(vq.eigenvalues[:8].abs(), cd.eigenvalues[:8].abs(), rtol=1e-5, atol=1e-8)


def test_compare_gradients_covers_all_temperatures_and_steps():
    ham = VQ(R)
    x, bases, u = solve_of(ham)
    result = compare_gradients(x, ham, bases, [1, 40], [1.0, 0.5], cotangent=u)
    assert [(at.temperature, at.steps) for at in result] == [(1.0, 1), (1.0, 40), (0.5, 1), (0.5, 40)]
    assert all(at.cosines["bptt"] == pytest.approx(1) and at.distances["bptt"] == 0 for at in result)
    assert result[1].refusal is None
    assert result[1].distances["implicit"] < 1e-3


def test_implicit_refusal_keeps_its_message_and_numbers():
    ham = NMF(R)
    x, bases, u = solve_of(ham)
    (at,) = compare_gradients(x, ham, bases, [1], cotangent=u)
    assert "implicit" not in at.norms
    assert at.refusal.message.startswith("implicit gradient of NMF")
    assert 0 < at.refusal.residual < 1
    assert at.refusal.drift > 2e-3


def test_zero_gradient_has_no_angle():
    # warm enough that all bases meet in one point: the codes are then 1/r whatever x is
    ham = VQ(4, temperature=1.0)
    x = low_rank(0)
    bases = ham.draw(1, 16, like=x, generator=torch.Generator().manual_seed(0))
    (at,) = compare_gradients(x, ham, bases, [50], cotangent=torch.ones_like(x))
    assert at.cosines["one-step"] is None
    assert at.norms["one-step"] < 1e-12 * at.norms["bptt"]


def test_study_inputs_are_nonnegative_and_reproducible():
    for make in (low_rank, feature_map):
        x = make(3)
        assert x.shape == (1, 16, 64)
        assert x.dtype == torch.float64
        assert (x >= 0).all() and (x.sum(1) > 0).all()
        assert torch.equal(x, make(3))
        assert not torch.equal(x, make(4))


def test_invalid_measurements_raise():
    x, bases, u = solve_of(VQ(R))
    with pytest.raises(ShapeError, match="one sample"):
        measure_contraction(x.expand(2, -1, -1), VQ(R), bases, 3)
    with pytest.raises(OptionError, match="no scale to fix"):
        jacobian_spectrum(x, VQ(R), bases, 3, unit_columns=True)
    with pytest.raises(OptionError, match="no temperature"):
        compare_gradients(x, NMF(R), bases, [1], [0.1], cotangent=u)
    with pytest.raises(OptionError, match="steps"):
        measure_gradient_terms(x, VQ(R), bases, 0)
