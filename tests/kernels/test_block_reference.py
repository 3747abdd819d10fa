"""The block's definition: its gradients by finite differences, and the formulas that the kernels follow."""

from __future__ import annotations

import block_reference as reference
import pytest
import torch
from tolerances import assert_close

import hamburger as hb


def problem(b=2, c=6, d=5, n=7, r=3):
    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    leaves = [normal(b, c, n), normal(d, c), normal(d), normal(c, d)]
    return [t.requires_grad_() for t in leaves], normal(b, d, r).abs(), normal(b, n, r).abs()


def test_reference_gradients_match_finite_differences():
    leaves, bases, before = problem()
    assert torch.autograd.gradcheck(lambda *t: reference.context(*t, bases, before, 1e-6), leaves)


def test_block_reference_matches_the_layer_without_norm():
    layer = hb.Hamburger(6, inner=5, rank=3, steps=2, norm="none").double().eval()
    x = torch.randn(2, 6, 7, dtype=torch.float64, requires_grad=True)
    z = reference.bread(x, layer.lower.weight, layer.lower.bias, rectify=True)
    with torch.no_grad():
        start = layer.ham.ham.init(z, layer.ham.dictionary(z))
        bases, codes = layer.ham.ham.solve(z, start, 2)
    weights = layer.lower.weight, layer.lower.bias, layer.upper.weight
    u = reference.context(x, *weights, bases, codes.mT, layer.ham.ham.eps)
    expected = layer.context(x)
    assert_close(u, expected)
    cotangent = torch.randn_like(u)
    leaves = x, *weights
    for a, b in zip(*(torch.autograd.grad(y, leaves, cotangent) for y in (u, expected)), strict=True):
        assert_close(a, b)


def test_folded_upper_bread_matches_forward_and_backward():
    (x, lower, bias, upper), bases, before = problem()
    z = reference.bread(x, lower, bias, rectify=True)
    q = reference.ratio(bases, before, 1e-6)
    codes = torch.einsum("bdn,bdr->bnr", z, bases) * q
    fold = torch.einsum("cd,bdr->bcr", upper, bases)
    u = reference.context(x, lower, bias, upper, bases, before, 1e-6)
    assert_close(reference.finish(fold, codes), u)
    du = torch.randn_like(u)
    dx, dlower, dbias, dupper = torch.autograd.grad(u, (x, lower, bias, upper), du)
    dz = reference.pull_back(du, fold, bases, q, z)
    assert_close(torch.einsum("dc,bdn->bcn", lower, dz), dx)
    assert_close(torch.einsum("bdn,bcn->dc", dz, x), dlower)
    assert_close(dz.sum((0, 2)), dbias)
    assert_close(torch.einsum("bcn,bnr,bdr->cd", du, codes, bases), dupper)


@pytest.mark.parametrize("rectify", [False, True])
def test_finish_matches_batch_norm_skip_and_relu(rectify):
    b, c, n, r = 2, 6, 7, 3
    norm = torch.nn.BatchNorm1d(c).double().eval()
    for t in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        t.data = torch.rand(c, dtype=torch.float64) + 0.1
    fold, codes, skip = (torch.randn(*s, dtype=torch.float64) for s in ((b, c, r), (b, n, r), (b, c, n)))
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    y = reference.finish(fold, codes, skip, scale, norm.bias - norm.running_mean * scale, rectify=rectify)
    expected = skip + norm(fold @ codes.mT)
    assert_close(y, expected.relu() if rectify else expected)
