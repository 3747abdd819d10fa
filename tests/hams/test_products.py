"""Products by oneDNN against float64, their derivatives, and when torch's own product is taken."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_close, relative_error
from torch.autograd import gradcheck, gradgradcheck

import hamburger as hb
from hamburger.hams import base as products

needs_onednn = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, products.OPERATOR), reason="torch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Let oneDNN multiply on every CPU, and count its products."""
    calls, original = [], products._multiply
    monkeypatch.setattr(products, "has_fast_onednn", lambda: True)
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
        assert relative_error(result, left.double() @ right.double()) < products.MAX_ERROR
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
    monkeypatch.setattr(products, "_takes_onednn", lambda a, b: True)
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
def test_a_sample_has_the_same_bits_alone_and_in_a_batch(onednn):
    x, bases = torch.rand(3, 64, 1100), torch.rand(1, 64, 16)
    batch = hb.decompose(x, "nmf", rank=16, bases=bases).reconstruction
    alone = hb.decompose(x[1:2], "nmf", rank=16, bases=bases).reconstruction
    assert torch.equal(batch[1:2], alone) and onednn


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
    assert decide()
    original = products._multiply
    monkeypatch.setattr(products, "_multiply", lambda a, b: original(a, b) * (1 + 1e-5))
    assert not decide()

    def refuse(a, b):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(products, "_multiply", refuse)
    assert not decide()
    monkeypatch.undo()
    monkeypatch.setattr(products, "_is_amd", lambda: False)
    assert not decide()


@needs_onednn
def test_softmax_is_that_of_torch_in_both_layouts():
    x = torch.randn(2, 50, 7)
    for each in (x, x.mT.contiguous().mT):
        assert_close(products.softmax(each), torch.softmax(each.double(), dim=2))
