"""The fused kernels' logic in Triton's interpreter, against plain float64.

Collected only with TRITON_INTERPRET=1: Triton reads it when it is imported.
"""

from __future__ import annotations

import copy

import pytest
import torch
import triton
import triton.language as tl
from tolerances import assert_close

import hamburger as hb
from hamburger.kernels.common import rounded_to_tf32

HAMS = {
    "nmf": lambda r: hb.NMF(r),
    "vq": lambda r: hb.VQ(r, temperature=0.1),
    "vq-constant-norms": lambda r: hb.VQ(r, temperature=0.1, constant_norms=True),
    "cd": lambda r: hb.CD(r, temperature=0.1),
}
NAMES = ["nmf", "vq", "cd"]
#         b  d    n    r   K
SHAPES = [
    (2, 24, 63, 5, 3),
    (1, 100, 200, 20, 2),
    (3, 8, 1, 8, 2),
    (2, 8, 127, 1, 1),
    (1, 40, 70, 70, 1),  # more than one tile of r
    (2, 1, 5, 1, 2),
    (1, 24, 33, 5, 0),
]


@pytest.fixture(autouse=True)
def poisoned():
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all() and torch.rand(2).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def problem(name, shape, dtype=torch.float32):
    b, d, n, r, _ = shape
    ham = HAMS[name](r)
    x = torch.rand(b, d, n) if ham.nonnegative else torch.randn(b, d, n)
    return ham, x.to(dtype), ham.draw(b, d, like=torch.empty(0))


def solve(ham, x, bases, steps, backend, cotangents):
    x = x.detach().requires_grad_()
    out = hb.decompose(x, ham, steps=steps, bases=bases.to(x) if x.dtype == torch.float64 else bases, backend=backend)
    loss = sum((value.double() * c).sum() for value, c in zip((out.codes, out.reconstruction), cotangents, strict=True))
    return out, torch.autograd.grad(loss, x)[0]


def compare(ham, x, bases, steps):
    """Factors, product and gradient against plain float64."""
    b, d, n = x.shape
    cotangents = torch.randn(b, ham.rank, n).double(), torch.randn(b, d, n).double()
    expected, slope = solve(ham, x.double(), bases, steps, "plain", cotangents)
    actual, gradient = solve(ham, x, bases, steps, "fused", cotangents)
    assert actual.bases.dtype == actual.codes.dtype == torch.float32
    assert actual.reconstruction.dtype == gradient.dtype == x.dtype
    # the interpreter does not round factors: they have the precision of float32 whatever x has
    for value, reference in zip(actual, expected, strict=True):
        assert_close(value, reference)
    if slope.norm() > 1e-12:
        assert_close(gradient, slope)
    else:  # a single column is the mean of every cluster: whatever it is, VQ gives it back
        assert gradient.norm() < 1e-6
    return actual


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", HAMS)
def test_values_and_gradients(name, shape):
    compare(*problem(name, shape), shape[-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name, dtype):
    compare(*problem(name, (2, 24, 63, 5, 1), dtype), 1)


@triton.jit
def rounding_kernel(p_in, p_out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(p_out + o, rounded_to_tf32(tl.load(p_in + o)))


def test_tf32_rounds_to_nearest():
    x = torch.randn(128) * 10.0 ** torch.randint(-30, 30, (128,))
    actual = torch.empty_like(x)
    rounding_kernel[(1,)](x, actual, N=128)
    digits, exponent = torch.frexp(x.double())
    expected = torch.ldexp((digits * 2**11).round() / 2**11, exponent)  # random: no ties
    assert torch.equal(actual.double(), expected) and not torch.equal(actual, x)
    special = torch.tensor([float("inf"), -float("inf"), 0.0, float("nan")]).repeat(32)
    rounding_kernel[(1,)](special, actual, N=128)
    assert torch.equal(actual.nan_to_num(7.0), special.nan_to_num(7.0)) and actual[3::4].isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_zero_columns(name):
    ham, x, bases = problem(name, (2, 24, 63, 5, 2))
    x[0, :, 7] = x[1, :, :40] = 0
    assert compare(ham, x, bases, 2).reconstruction[0, :, 7].isfinite().all()


@pytest.mark.parametrize("name", ["vq", "cd"])
def test_almost_zero_inputs(name):
    """Centroids so short that the eps of their length and of the mass counts."""
    ham, x, bases = problem(name, (1, 8, 33, 3, 2))
    compare(ham, x * 1e-8, bases, 2)


@pytest.mark.parametrize("name", NAMES)
def test_any_strides(name):
    ham, x, bases = problem(name, (2, 24, 20, 5, 1))
    expected = hb.decompose(x, ham, steps=1, bases=bases, backend="fused")
    wide = torch.stack([x, x * 0], dim=-1)[..., 0]  # every second entry of a row
    channels_last = x.mT.contiguous().mT
    for view in (wide, channels_last):
        assert not view.is_contiguous()
        actual = hb.decompose(view, ham, steps=1, bases=bases, backend="fused")
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert hb.decompose(channels_last, ham, steps=0, bases=bases, backend="fused").reconstruction.stride(1) == 1
    compare(ham, x[:1].expand(2, -1, -1), bases, 0)
    compare(ham, x, bases[:1], 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_twice(name):
    ham, x, bases = problem(name, (1, 24, 70, 5, 1))
    first, again = (hb.decompose(x, ham, steps=1, bases=bases, backend="fused") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_saved_without_grad_and_codes_have_a_gradient(name):
    ham, x, bases = problem(name, (1, 24, 33, 5, 1))
    x.requires_grad_()
    with torch.no_grad():
        assert hb.decompose(x, ham, bases=bases, backend="fused").reconstruction.grad_fn is None
    gradients = [
        torch.autograd.grad(hb.decompose(x, ham, bases=bases, backend=b).codes.square().sum(), x)[0]
        for b in ("fused", "plain")
    ]
    assert_close(*gradients)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_derivative_is_refused(name):
    ham, x, bases = problem(name, (1, 8, 20, 3, 0))
    y = hb.decompose(x.requires_grad_(), ham, steps=0, bases=bases, backend="fused").reconstruction
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(hb.OptionError, match=r"differentiated once.*backend='plain'"):
        slope.square().sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_fused_and_plain_layers_train_alike(name):
    """The same draws, the same values and the same gradients, heads and transposed problem included."""
    ham = HAMS[name](4)
    layer = hb.Hamburger(16, ham=ham, heads=2, version="v2+", dual=True, steps=1, backend="fused")
    torch.nn.init.constant_(layer.burger_scale, 1.0)
    plain = copy.deepcopy(layer)
    for module in plain.modules():
        if isinstance(module, hb.HamLayer):
            module.backend = "plain"
    z = torch.randn(1, 16, 5, 7)
    for mode in (True, False):
        results = []
        for each in (layer.train(mode), plain.train(mode)):
            torch.manual_seed(3)
            each.zero_grad()
            y = each(z)
            y.square().sum().backward()
            results.append((y, *(p.grad for p in each.parameters())))
        for a, b in zip(*results, strict=True):
            assert_close(a, b, slack=5)  # two roundings, through batch norms


@pytest.mark.parametrize("name", NAMES)
def test_fused_ham_compiles(name):
    ham, x, bases = problem(name, (1, 24, 20, 5, 1))

    def f(x):
        return hb.decompose(x, ham, steps=1, bases=bases, backend="fused")

    fast = torch.compile(f, backend="aot_eager", fullgraph=True)
    x.requires_grad_()
    slopes = [torch.autograd.grad(g(x).reconstruction.square().sum(), x)[0] for g in (f, fast)]
    assert torch.equal(*slopes)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own check asks for it
@pytest.mark.parametrize("name", NAMES)
def test_custom_operators_pass_opcheck(name):
    from hamburger.kernels.decompose import solve_op

    ham, x, bases = problem(name, (1, 24, 20, 5, 1))
    spec = ham.fused_spec()
    torch.library.opcheck(solve_op, (x, bases, spec.kernel, spec.options, 1, False))
    for steps in (0, 1):
        torch.library.opcheck(solve_op, (x.requires_grad_(), bases, spec.kernel, spec.options, steps, True))
