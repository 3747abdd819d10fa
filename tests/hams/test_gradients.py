"""What each gradient strategy differentiates, against formulas by hand, finite differences and counted memory."""

from __future__ import annotations

import itertools

import pytest
import torch
from tolerances import assert_close
from torch.autograd import gradcheck

import hamburger as hb
from hamburger.hams import as_gradient

# Temperatures at which six steps are smooth enough for finite differences.
PAPER = {"nmf": hb.NMF(rank=3), "vq": hb.VQ(rank=3, temperature=0.2), "cd": hb.CD(rank=3, temperature=0.2)}
HAMS = {
    **PAPER,
    "hals": hb.HALS(rank=3),
    "robust": hb.Robust(rank=3, threshold=0.3),
    "local": hb.Local(rank=3),
    "windowed": hb.Windowed(rank=3, window=4, local_rank=1),
    "learned": hb.Learned(rank=3, relaxation=1.3),
}
CASES = list(itertools.product(HAMS, (0, 1, 3)))
STRATEGIES = ["one-step", "truncated:1", "truncated:3", "truncated:99", "bptt", "phantom:2", "phantom:99", "implicit"]


@pytest.fixture
def x(request):
    """Positive for NMF; signed for the others, whose clusters would collapse on data that all point one way."""
    name = request.node.callspec.params.get("name", "nmf") if hasattr(request.node, "callspec") else "nmf"
    positive = torch.rand(2, 7, 11, dtype=torch.float64) + 0.1
    return positive if HAMS[name].nonnegative else torch.randn(2, 7, 11, dtype=torch.float64)


@pytest.fixture
def bases():
    return torch.rand(2, 7, 3, dtype=torch.float64) + 0.1


def gradient(x, ham, bases, weight, **options):
    x = x.clone().requires_grad_()
    out = hb.decompose(x, ham, bases=bases, **options).reconstruction
    return torch.autograd.grad((out * weight).sum(), x)[0]


@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize("grad", STRATEGIES)
@pytest.mark.parametrize("name", HAMS)
def test_gradient_strategy_never_changes_the_value(name, grad, steps):
    if (name, grad) == ("learned", "implicit"):
        pytest.skip("raises")
    x, bases = torch.rand(2, 16, 37, requires_grad=True), torch.rand(2, 16, 3)
    with torch.no_grad():
        plain = hb.decompose(x, HAMS[name], steps=steps, bases=bases)
    for ours, theirs in zip(hb.decompose(x, HAMS[name], steps=steps, bases=bases, grad=grad), plain, strict=True):
        assert torch.equal(ours, theirs)


def solved(x, ham, bases, steps=6):
    """D and C after the solve, detached."""
    return ham.solve(x, ham.init(x, bases), steps)


def test_one_step_of_nmf_matches_the_derivative_by_hand(x, bases):
    ham, g = HAMS["nmf"], torch.randn_like(x)
    d, c = solved(x, ham, bases)
    # y = D (C * (D^T X) / q) with q = D^T D C + eps constant, so dX = D (C / q * (D^T g))
    q = torch.einsum("bdr,bds,bsn->brn", d, d, c) + ham.eps
    expected = torch.einsum("bdr,brn->bdn", d, c / q * torch.einsum("bdr,bdn->brn", d, g))
    assert_close(gradient(x, ham, bases, g), expected)


def test_one_step_of_cd_matches_the_derivative_by_hand(x, bases):
    ham, g = HAMS["cd"], torch.randn_like(x)
    d, _ = solved(x, ham, bases)
    # y = H X with the symmetric ridge projector H = D (D^T D + beta I)^-1 D^T
    u, s, _ = torch.linalg.svd(d, full_matrices=False)
    hat = u @ torch.diag_embed(s**2 / (s**2 + ham.beta)) @ u.mT
    assert_close(gradient(x, ham, bases, g), hat @ g)


@pytest.mark.parametrize("constant_norms", [False, True])
def test_one_step_of_vq_matches_the_derivative_by_hand(bases, constant_norms):
    x = torch.randn(2, 7, 11, dtype=torch.float64)
    ham, g = hb.VQ(rank=3, temperature=0.3, constant_norms=constant_norms), torch.randn_like(x)
    d, _ = solved(x, ham, bases)
    expected = torch.empty_like(x)
    for b in range(2):
        unit = d[b] / d[b].norm(dim=0)
        for j in range(11):
            size = x[b, :, j].norm()
            direction = x[b, :, j] / size
            p = torch.softmax(unit.T @ direction / 0.3, 0)
            softmax_jacobian = torch.diag(p) - torch.outer(p, p)
            cosine_jacobian = unit.T / size
            if not constant_norms:  # moving x along itself leaves its direction as it is
                cosine_jacobian = cosine_jacobian @ (torch.eye(7) - torch.outer(direction, direction))
            expected[b, :, j] = (d[b] @ softmax_jacobian @ cosine_jacobian / 0.3).T @ g[b, :, j]
    assert_close(gradient(x, ham, bases, g), expected)


@pytest.mark.parametrize("keep", [0, 1, 2])
@pytest.mark.parametrize("name", HAMS)
def test_truncated_matches_autograd_after_a_detach(name, keep, x, bases):
    ham, g = HAMS[name], torch.randn_like(x)
    x.requires_grad_()
    factors = hb.Factors(*(None if t is None else t.detach() for t in solved(x, ham, bases, steps=6 - keep)))
    for _ in range(keep):
        factors = ham.step(x, factors)
    (expected,) = torch.autograd.grad((factors.bases @ ham.readout(x, factors) * g).sum(), x)
    assert_close(gradient(x.detach(), ham, bases, g, grad=hb.Truncated(keep)), expected)


@pytest.mark.parametrize("name", HAMS)
def test_more_kept_steps_change_the_gradient(name, x, bases):
    g = torch.randn_like(x)
    grads = [gradient(x, HAMS[name], bases, g, grad=f"truncated:{keep}") for keep in (0, 1, 2)]
    assert (grads[0] - grads[1]).norm() > 1e-3 * grads[0].norm()
    assert (grads[1] - grads[2]).norm() > 1e-6 * grads[1].norm()


@pytest.mark.parametrize(
    ("name", "steps"),
    [case if case[0] in PAPER or case[1] == 1 else pytest.param(*case, marks=pytest.mark.full) for case in CASES],
)
def test_bptt_passes_gradcheck_in_x_and_in_the_first_bases(name, steps, x, bases):
    def f(x, bases):
        return hb.decompose(x, HAMS[name], steps=steps, bases=bases, grad=hb.bptt).reconstruction

    assert gradcheck(f, (x.requires_grad_(), bases.requires_grad_()))


@pytest.mark.parametrize("codes_init", ["softmax", "cosine", "uniform"])
def test_bptt_differentiates_the_first_codes_of_nmf(codes_init, x, bases):
    ham = hb.NMF(rank=3, codes_init=codes_init)
    assert gradcheck(
        lambda x: hb.decompose(x, ham, steps=2, bases=bases, grad="bptt").reconstruction, (x.requires_grad_(),)
    )


@pytest.mark.parametrize("grad", ["one-step", "truncated:1", "truncated:2"])
@pytest.mark.parametrize("name", HAMS)
def test_truncated_passes_gradcheck_after_the_detach(name, grad, x, bases):
    """Finite differences of the differentiated steps alone, started from the detached factors."""
    ham, keep = HAMS[name], as_gradient(grad).keep
    factors = solved(x, ham, bases, steps=6 - keep)

    def kept(x):
        f = ham.solve(x, factors, keep)
        return f.bases @ ham.readout(x, f)

    g = torch.randn_like(x)
    step = 1e-6
    numeric = torch.empty_like(x)
    for i in range(x.numel()):
        e = torch.zeros_like(x).view(-1)
        e[i] = step
        e = e.view_as(x)
        numeric.view(-1)[i] = ((kept(x + e) - kept(x - e)) * g).sum() / (2 * step)
    assert_close(gradient(x, ham, bases, g, grad=grad), numeric, slack=1e4)


@pytest.mark.parametrize(
    ("ham", "steps"),
    [(hb.VQ(rank=3, temperature=0.3), 200), (hb.CD(rank=3, temperature=0.3), 200), (hb.NMF(rank=3, eps=1e-12), 20000)],
    ids=["vq", "cd", "nmf"],
)
def test_implicit_matches_the_derivative_of_the_converged_solution(ham, steps):
    g = torch.Generator().manual_seed(3)
    x = (torch.rand(2, 7, 3, generator=g) @ torch.rand(2, 3, 11, generator=g)).double() + 0.02
    x = x + 0.02 * torch.rand(2, 7, 11, generator=g).double()
    bases, weight = torch.rand(2, 7, 3, generator=g).double(), torch.randn(2, 7, 11, generator=g).double()
    actual = gradient(x, ham, bases, weight, steps=steps, grad=hb.Implicit(tol=1e-9, iterations=100))
    direction = torch.randn(2, 7, 11, generator=g).double()
    step = 1e-5
    ends = [hb.decompose(x + s * step * direction, ham, steps=steps, bases=bases).reconstruction for s in (1, -1)]
    numeric = ((ends[0] - ends[1]) * weight).sum((1, 2)) / (2 * step)
    assert_close((actual * direction).sum((1, 2)), numeric, slack=1e6 if isinstance(ham, hb.NMF) else 1e4)


@pytest.mark.parametrize("name", PAPER)
def test_implicit_raises_before_convergence(name):
    x = torch.rand(2, 16, 40)
    ham = hb.hams.create(name, rank=4)  # cold: temperature 0.01
    out = hb.decompose(x.requires_grad_(), ham, steps=2, grad="implicit", generator=torch.Generator().manual_seed(0))
    with pytest.raises(hb.ImplicitGradientError, match=r"residual \d.*growth \d.*drift \d.*expansion.*more steps"):
        out.reconstruction.sum().backward()
    assert x.grad is None


def test_implicit_raises_on_nan():
    x = torch.rand(2, 16, 40)
    x[1, 3, 4] = torch.nan
    out = hb.decompose(x.requires_grad_(), hb.VQ(rank=3, temperature=0.3), steps=50, grad="implicit")
    with pytest.raises(hb.ImplicitGradientError, match="sample 1 of 2"):
        out.reconstruction.sum().backward()


def saved_bytes(run):
    """Bytes that autograd keeps for the backward pass of run()."""
    sizes, kept = {}, []

    def note(tensor):
        kept.append(tensor)  # else the memory of a tensor that is dropped may be taken by another one
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        keep_alive = run()
    del keep_alive
    return sum(sizes.values())


@pytest.mark.parametrize("name", HAMS)
def test_only_bptt_memory_grows_with_steps(name):
    x = torch.rand(1, 64, 500, requires_grad=True)
    bases = torch.rand(1, 64, 3)

    def at(steps, grad):
        return saved_bytes(lambda: hb.decompose(x, HAMS[name], steps=steps, bases=bases, grad=grad))

    for grad in ("one-step", "truncated:1", "truncated:2", "phantom:2", "implicit"):
        if (name, grad) != ("learned", "implicit"):  # which raises
            assert at(4, grad) == at(16, grad), grad
    few, more, most = (at(steps, "bptt") for steps in (4, 8, 16))
    assert more - few > 4 * x.shape[2] * 3 * 4  # at least the codes of each further step
    assert most - more == pytest.approx(2 * (more - few), rel=0.01)
    assert at(6, "one-step") < at(6, "truncated:1") < few


def test_gradient_names_are_parsed():
    assert as_gradient("one-step") is hb.one_step
    assert as_gradient("bptt") is hb.bptt
    assert as_gradient("truncated:2") == hb.Truncated(keep=2)
    assert as_gradient("implicit") == hb.Implicit()
    assert as_gradient("phantom:2") == hb.Phantom(keep=2, damping=0.5)
    assert as_gradient("phantom:2:0.8") == hb.Phantom(keep=2, damping=0.8)
    for grad in ("one-step", "bptt", "truncated:2", "phantom:3", "phantom:3:0.25", "implicit"):
        assert str(as_gradient(grad)) == grad
    for wrong in ("one_step", "truncated", "truncated:x", "truncated:-1", "", "phantom", "phantom:x", "phantom:2:"):
        with pytest.raises(hb.OptionError, match="known"):
            as_gradient(wrong)


# -- phantom gradients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HAMS)
def test_phantom_matches_the_derivative_of_its_damped_steps(name, x, bases):
    """Damped steps by hand, the read-out at the undamped factors, and finite differences of the damped steps."""
    ham, g, damping = HAMS[name], torch.randn_like(x), 0.6
    first = solved(x, ham, bases, steps=4)

    def damped(x):
        f = first
        for _ in range(2):
            after = ham.step(x, f)
            codes = after.codes if f.codes is None else (1 - damping) * f.codes + damping * after.codes
            f = hb.Factors((1 - damping) * f.bases + damping * after.bases, codes if after.codes is not None else None)
        return f

    last = [None if t is None else t.requires_grad_() for t in solved(x, ham, bases)]
    leaf = x.clone().requires_grad_()
    value = (ham.finish(leaf, hb.Factors(*last))[2] * g).sum()
    known = [t for t in last if t is not None]
    direct, *weights = torch.autograd.grad(value, (leaf, *known), allow_unused=True)
    numeric, h, direction = direct, 1e-6, torch.randn_like(x)
    ends = [[t for t in damped(x + s * h * direction) if t is not None] for s in (1, -1)]
    expected = (numeric * direction).sum() + sum(
        ((a - b) * w).sum() / (2 * h) for a, b, w in zip(*ends, weights, strict=True) if w is not None
    )
    actual = (gradient(x, ham, bases, g, grad=hb.Phantom(2, damping=damping)) * direction).sum()
    assert_close(actual, expected, slack=1e5)


@pytest.mark.parametrize("keep", [1, 2, 99])
@pytest.mark.parametrize("name", HAMS)
def test_phantom_without_damping_is_truncated(name, keep, x, bases):
    g = torch.randn_like(x)
    phantom = gradient(x, HAMS[name], bases, g, grad=hb.Phantom(keep, damping=1.0))
    assert torch.equal(phantom, gradient(x, HAMS[name], bases, g, grad=hb.Truncated(keep)))
    nearly = gradient(x, HAMS[name], bases, g, grad=hb.Phantom(keep, damping=1 - 1e-9))
    assert_close(nearly, phantom, slack=1e4)


@pytest.mark.parametrize("keep", [1, 3, 8])
def test_phantom_is_the_damped_neumann_series_at_a_fixed_point(keep):
    """sum_{i < keep} a ((1 - a) I + a J)^i dF/dx from the Jacobians of one step, in float64."""
    torch.manual_seed(3)
    x, damping = torch.randn(1, 5, 8, dtype=torch.float64), 0.4
    ham, first = hb.CD(rank=2, temperature=0.5), torch.rand(1, 5, 2, dtype=torch.float64)
    with torch.no_grad():
        fixed = ham.solve(x, ham.init(x, first), 400).bases
    assert_close(ham.step(x, hb.Factors(fixed)).bases, fixed)
    jacobian, to_x = torch.autograd.functional.jacobian(lambda h, x: ham.step(x, hb.Factors(h)).bases, (fixed, x))
    jacobian, to_x = jacobian.reshape(10, 10), to_x.reshape(10, 40)
    g = torch.randn_like(x)
    h, leaf = fixed.clone().requires_grad_(), x.clone().requires_grad_()
    value = (h @ ham.readout(leaf, hb.Factors(h)) * g).sum()
    from_h, direct = torch.autograd.grad(value, (h, leaf))
    series, power = torch.zeros(10, dtype=torch.float64), from_h.reshape(10)
    for _ in range(keep):
        series, power = series + damping * power, power @ ((1 - damping) * torch.eye(10) + damping * jacobian)
    expected = direct + (series @ to_x).view_as(x)
    actual = gradient(x, ham, first, g, steps=400, grad=hb.Phantom(keep, damping=damping))
    assert_close(actual, expected, slack=1e3)


def test_phantom_options_are_checked():
    for wrong in ({"keep": 0}, {"keep": 1, "damping": 0.0}, {"keep": 1, "damping": 1.5}):
        with pytest.raises(hb.OptionError, match=r"Phantom: (keep|damping) must be"):
            hb.Phantom(**wrong)


def test_one_step_gives_initial_bases_no_gradient(x, bases):
    bases.requires_grad_()
    out = hb.decompose(x.requires_grad_(), "nmf", rank=3, bases=bases)
    out.reconstruction.sum().backward()
    assert x.grad is not None and x.grad.norm() > 0
    assert bases.grad is None


def test_implicit_raises_at_an_unstable_fixed_point():
    """A ham with an unstable fixed point: steps move away from it."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Repelled(hb.Ham):
        def step(self, x, f):
            return hb.Factors(x[..., :1] + 1.5 * (f.bases - x[..., :1]))

        def readout(self, x, f):
            return f.bases.mT @ x

    x = torch.rand(1, 5, 9, dtype=torch.float64).requires_grad_()
    start = x.detach()[..., :1] + 1e-9
    out = hb.decompose(x, Repelled(rank=1), steps=1, bases=start, grad="implicit").reconstruction
    with pytest.raises(hb.ImplicitGradientError, match=r"expansion 1\.5 \(at most 1\)") as refusal:
        out.sum().backward()
    assert refusal.value.findings["drift"] < 1e-2
    assert refusal.value.findings["residual"] < 1e-3


def test_gmres_reaches_its_tolerance_in_float32():
    from hamburger.hams.implicit import gmres

    g = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(40, 40, generator=g))[0]
    a = q @ torch.diag(torch.logspace(-3, 0, 40)) @ q.mT  # condition number 1000
    b = torch.randn(3, 40, generator=g)
    v, residual = gmres(lambda v: v @ a.mT, b, iterations=40, tol=1e-6)
    assert (residual < 1e-4).all()
    assert_close(v @ a.mT, b, slack=10)
