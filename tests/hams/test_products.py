"""Products by oneDNN against float64, their derivatives, and when torch's own product is taken."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import assert_close, relative_error
from torch.autograd import gradcheck, gradgradcheck

import hamburger as hb
from hamburger.hams import base as products
from hamburger.layers.ham import Bread

needs_onednn = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, products.OPERATOR), reason="torch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Let oneDNN multiply on every CPU, and count its products."""
    calls, original = [], products._multiply
    monkeypatch.setattr(products, "has_fast_onednn", lambda dtype: dtype == torch.float32)
    monkeypatch.setattr(products, "_multiply", lambda a, b: (calls.append(a.shape), original(a, b))[1])
    return calls


def layouts(b, d, n):
    x = torch.randn(b, d, n)
    return {
        "plain": x,
        "channels last": x.mT.contiguous().mT,
        "sliced": torch.stack([x, -x], dim=3)[..., 0],
        "one column": x[:, :, :1].expand(b, d, n),
        "one row": x[:, :1].expand(b, d, n),
        "one sample": x[:1].expand(b, d, n),
    }


@needs_onednn
@pytest.mark.parametrize("layout", layouts(1, 1, 1))
@pytest.mark.parametrize("b", [1, 3])
def test_products_are_exact_in_every_layout(b, layout, onednn):
    x, bases, codes = layouts(b, 64, 1100)[layout], torch.randn(b, 64, 20), torch.randn(b, 20, 1100)
    for left, right in ((x.mT, bases), (bases.mT, x), (x, codes.mT), (codes, x.mT), (bases, codes)):
        result = products.product(left, right)
        assert result.shape == torch.bmm(left, right).shape
        assert relative_error(result, left.double() @ right.double()) < products.MAX_ERROR[torch.float32]
    assert len(onednn) >= 5


@needs_onednn
@pytest.mark.parametrize("layout", layouts(1, 1, 1))
def test_the_slow_code_of_onednn_is_not_called(layout, onednn, monkeypatch):
    """With strides other than those of a matrix or its transpose it takes 50 times as long."""
    strides, linear = [], torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(
        torch.ops.mkldnn, products.OPERATOR, lambda x, w, *rest: (strides.append(w), linear(x, w, *rest))[1]
    )
    x, bases, codes = layouts(2, 64, 1100)[layout], torch.randn(2, 64, 20), torch.randn(2, 20, 1100)
    products.product(x.mT, bases), products.product(x, codes.mT)
    assert len(strides) == 4
    for weight in strides:
        assert weight.is_contiguous() or weight.mT.is_contiguous()


@needs_onednn
def test_derivatives_of_all_orders(monkeypatch):
    monkeypatch.setattr(products, "takes_onednn", lambda a, b: True)
    monkeypatch.setattr(products, "_multiply", torch.bmm)  # gradcheck needs float64, which oneDNN does not have
    a, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 4), (2, 4, 5)))
    assert gradcheck(products.product, (a, b)) and gradgradcheck(products.product, (a, b))
    assert products.product(a, b).grad_fn.name() == "_ProductBackward"


@needs_onednn
@pytest.mark.parametrize("grad", ["one-step", "truncated:1", "bptt"])
@pytest.mark.parametrize("name", ["nmf", "vq", "cd"])
def test_gradients_of_a_solve(name, grad, onednn):
    """The value is the same to the bit with and without a graph; the gradient that of float64."""
    options = {} if name == "nmf" else {"temperature": 0.5}
    x = torch.rand(2, 64, 1100) if name == "nmf" else torch.randn(2, 64, 1100)
    ham = hb.hams.create(name, rank=16, **options)
    bases = ham.draw(1, 64, like=x)
    results = []
    for each in (x, x.double()):
        each = each.clone().requires_grad_()
        y = hb.decompose(each, ham, steps=3, bases=bases.to(each), grad=grad).reconstruction
        results.append((y.detach(), torch.autograd.grad(y.square().sum(), each)[0]))
    plain = hb.decompose(x, ham, steps=3, bases=bases).reconstruction
    assert torch.equal(results[0][0], plain)
    for ours, exact in zip(*results, strict=True):
        assert_close(ours, exact, slack=5)
    assert onednn


@needs_onednn
@pytest.mark.parametrize("bias", [False, True])
def test_breads_multiply_by_onednn(bias, onednn):
    bread, x = Bread(64, 32, bias=bias), torch.randn(2, 64, 1100)
    results = []
    for each, layer in ((x, bread), (x.double(), copy.deepcopy(bread).double())):
        each = each.clone().requires_grad_()
        y = layer(each)
        results.append([y, *torch.autograd.grad(y.square().sum(), [each, *layer.parameters()])])
    for ours, exact in zip(*results, strict=True):
        assert_close(ours, exact)
    assert len(onednn) == 3 and y.is_contiguous()
    assert bread.bfloat16()(x).dtype == torch.bfloat16 and len(onednn) == 3


@needs_onednn
def test_a_sample_has_the_same_bits_alone_and_in_a_batch(onednn):
    x, bases = torch.rand(3, 64, 1100), torch.rand(1, 64, 16)
    batch = hb.decompose(x, "nmf", rank=16, bases=bases).reconstruction
    alone = hb.decompose(x[1:2], "nmf", rank=16, bases=bases).reconstruction
    assert torch.equal(batch[1:2], alone) and onednn


def test_half_precision_rounds_the_other_operand_and_returns_float32():
    a, b = torch.randn(2, 8, 9), torch.randn(2, 9, 7)
    for half in (torch.bfloat16, torch.float16):
        expected = torch.bmm(a.to(half), b.to(half)).float()
        assert torch.equal(products.product(a.to(half), b), expected)
        assert torch.equal(products.product(a, b.to(half)), expected)


def test_other_products_are_left_to_torch(onednn):
    a, b = torch.randn(1, 64, 512), torch.randn(1, 512, 64)

    def multiply(a=a, b=b):
        return products.product(a, b)

    multiply(a.double(), b.double())
    multiply(a.bfloat16(), b.bfloat16())
    multiply(a[:, :8], b[:, :, :8])  # too small
    torch._C._set_mkldnn_enabled(False)  # as in torch.backends.mkldnn.flags
    try:
        multiply()
    finally:
        torch._C._set_mkldnn_enabled(True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert multiply().dtype == torch.bfloat16
    torch.func.vmap(lambda a, b: multiply(a[None], b[None]))(a, b)
    torch.func.jvp(multiply, (a, b), (a, b))
    torch.compile(multiply, backend="eager", fullgraph=True)(a, b)
    multiply(a.to("meta"), b.to("meta"))
    torch.jit.trace(multiply, (a, b), check_trace=False)
    assert not onednn
    multiply()
    assert len(onednn) == hasattr(torch.ops.mkldnn, products.OPERATOR)


@needs_onednn
def test_a_library_with_errors_is_not_taken(monkeypatch):
    monkeypatch.setattr(products, "_is_amd", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    decide = products.has_fast_onednn.__wrapped__
    assert decide(torch.float32)
    original = products._multiply
    monkeypatch.setattr(products, "_multiply", lambda a, b: original(a, b) * (1 + 1e-5))
    assert not decide(torch.float32)

    def refuse(a, b):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(products, "_multiply", refuse)
    assert not decide(torch.float32)
    monkeypatch.undo()
    monkeypatch.setattr(products, "_is_amd", lambda: False)
    assert not decide(torch.float32)


@pytest.fixture
def bfloat16(monkeypatch):
    """Let X stay in bfloat16 on every CPU, and count products in it."""
    calls, original = [], products._multiply
    monkeypatch.setattr(products, "has_fast_onednn", lambda dtype: dtype == torch.bfloat16)
    monkeypatch.setattr(products, "_multiply", lambda a, b: (calls.append(a.dtype), original(a, b))[1])
    return calls


def bfloat16_problem(name, b=2):
    """Clusters that differ clearly, X in bfloat16, and first bases."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(1, 64, 12, generator=generator) - (name != "nmf") * 0.3
    x = centres[:, :, torch.randint(12, (b, 1100), generator=generator)].squeeze(0).transpose(0, 1)
    x = (x + 0.1 * torch.rand(x.shape, generator=generator)).bfloat16()
    ham = hb.hams.create(name, rank=16, **({} if name == "nmf" else {"temperature": 0.2}))
    return x, ham, ham.draw(1, 64, like=x.float(), generator=generator)


@pytest.mark.parametrize("grad", ["one-step", "truncated:1", "bptt"])
@pytest.mark.parametrize("name", ["nmf", "vq", "cd"])
def test_bfloat16_solves_and_their_gradients(name, grad, bfloat16):
    """Factors are float32, values have the rounding errors of bfloat16, samples do not depend on their batch."""
    x, ham, bases = bfloat16_problem(name)
    results = []
    for each in (x, x.double()):
        each = each.clone().requires_grad_()
        out = hb.decompose(each, ham, steps=3, bases=bases, grad=grad)
        results.append((out.reconstruction, torch.autograd.grad(out.reconstruction.square().sum(), each)[0]))
    assert out.bases.dtype == torch.float64 and results[0][1].dtype == torch.bfloat16
    for ours, exact in zip(*results, strict=True):
        assert_close(ours, exact, slack=4)
    assert bool(bfloat16) is (name != "vq")  # whose gradient takes float32
    plain = hb.decompose(x, ham, steps=3, bases=bases)
    assert plain.bases.dtype == plain.codes.dtype == torch.float32
    if name == "vq":
        assert_close(plain.reconstruction, results[1][0], slack=4)
    else:
        assert torch.equal(results[0][0], plain.reconstruction)
    alone = hb.decompose(x[1:], ham, steps=3, bases=bases)
    assert torch.equal(plain.reconstruction[1:], alone.reconstruction)
    assert len(bfloat16) > 8 and set(bfloat16) == {torch.bfloat16}


def test_a_layer_under_autocast_solves_in_bfloat16(bfloat16):
    layer, z = hb.Hamburger(64, inner=64, ham="nmf", rank=16).eval(), torch.randn(1, 64, 33, 33)
    with torch.no_grad():
        exact = layer(z)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_close(layer(z), exact, dtype=torch.bfloat16)
    assert bfloat16


def test_other_solves_widen_bfloat16(bfloat16):
    """Hams of other projects may use torch's operators, implicit gradients need the digits, compilers see float32."""
    x, ham, bases = bfloat16_problem("nmf")

    class Own(hb.NMF):
        pass

    expected = hb.decompose(x.float(), ham, bases=bases).reconstruction.bfloat16()
    assert torch.equal(hb.decompose(x, Own(rank=16), bases=bases).reconstruction, expected)
    assert torch.equal(hb.decompose(x, ham, bases=bases, grad="implicit").reconstruction, expected)
    hb.decompose(x[:, :, :50], ham, bases=bases)  # too small
    solve = torch.compile(lambda x: hb.decompose(x, ham, bases=bases).reconstruction, backend="eager", fullgraph=True)
    solve(x)
    torch.func.jvp(lambda x: hb.decompose(x, ham, bases=bases).reconstruction, (x,), (x,))
    assert not bfloat16


def test_bfloat16_needs_a_cpu_that_has_it(monkeypatch):
    decide = products.has_fast_onednn.__wrapped__
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert decide(torch.bfloat16) == torch.backends.mkldnn.is_available()
    original = products._multiply
    monkeypatch.setattr(products, "_multiply", lambda a, b: original(a, b) * (1 + 1e-2))
    assert not decide(torch.bfloat16)
    monkeypatch.setattr(products, "_multiply", original)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    assert not decide(torch.bfloat16)


@needs_onednn
def test_softmax_is_that_of_torch_in_both_layouts():
    x = torch.randn(2, 50, 7)
    for each in (x, x.mT.contiguous().mT):
        assert_close(products.softmax(each), torch.softmax(each.double(), dim=2))
