"""Solves that start from columns of X: which columns, their values and gradients, and no dead bases."""

from __future__ import annotations

import oracles
import pytest
import torch
from tolerances import assert_close, relative_error
from torch.autograd import gradcheck

import hamburger as hb
from hamburger.hams.base import spread_positions

HAMS = {"nmf": hb.NMF(rank=5), "vq": hb.VQ(rank=5, temperature=0.2), "cd": hb.CD(rank=5, temperature=0.2)}
CPU = torch.device("cpu")


def matrix(name, *shape):
    return torch.rand(shape, dtype=torch.float64) if name == "nmf" else torch.randn(shape, dtype=torch.float64)


def oracle(name, x):
    picked = [oracles.columns(each.numpy(), HAMS[name].rank, HAMS[name].nonnegative) for each in x]
    return torch.stack([torch.from_numpy(each) for each in picked])


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 3, 5, 6, 7, 37], ids=lambda n: f"n={n}")
@pytest.mark.parametrize("name", HAMS)
def test_a_solve_starts_from_columns_of_x(name, n, steps):
    x = matrix(name, 2, 16, n)
    assert_close(HAMS[name].select_columns(x), oracle(name, x))
    out = hb.decompose(x, HAMS[name], steps=steps, bases="columns")
    for ours, theirs in zip(out, hb.decompose(x, HAMS[name], steps=steps, bases=oracle(name, x)), strict=True):
        assert_close(ours, theirs, slack=100)


@pytest.mark.parametrize("r", [1, 2, 3, 64, 130, 512])
def test_positions_are_one_in_each_of_r_equal_stretches(r):
    for n in (*range(r, 2 * r + 3), 5 * r + 1, 16_384 + r, 2**31):
        positions = spread_positions(n, r, CPU).tolist()
        assert len(set(positions)) == r and positions[0] >= 0 and positions[-1] < n
        assert all(k * n // r <= position < -(-(k + 1) * n // r) for k, position in enumerate(positions))


@pytest.mark.parametrize(("n", "r"), [(1, 4), (3, 8), (5, 12), (64, 512)])
def test_fewer_columns_than_bases_are_repeated_evenly(n, r):
    counts = torch.bincount(spread_positions(n, r, CPU), minlength=n)
    assert counts.min() >= r // n and counts.max() <= -(-r // n)


@pytest.mark.parametrize("side", [32, 64, 128, 100])
def test_positions_of_an_image_are_not_on_one_line(side):
    """With a constant stride they are: 64 of 64 x 64 positions lie on one vertical line."""
    across = spread_positions(side * side, 64, CPU) % side
    counts = torch.histc(across.double(), bins=8, min=0, max=side)
    assert counts.min() >= 4 and counts.max() <= 16


def relu_features(*shape):
    """Most entries are zero, and so are whole columns, among them some that the solve starts from."""
    x = (torch.randn(shape, dtype=torch.float64) - 1).relu()
    x[:, :, spread_positions(shape[2], 5, CPU)[1:3]] = 0
    return x


def test_no_basis_is_dead_on_relu_features():
    x = relu_features(3, 24, 200)
    start = HAMS["nmf"].select_columns(x)
    assert (x.index_select(2, spread_positions(200, 5, CPU)) == 0).any(1).all()  # every column has zeros
    assert start.min() > 0
    assert_close(start.norm(dim=1), torch.ones(3, 5, dtype=torch.float64))
    out = hb.decompose(x, HAMS["nmf"], steps=6, bases="columns")
    assert (out.bases.norm(dim=1) * out.codes.norm(dim=2)).min() > 1e-3 * x.flatten(1).norm(dim=1).max()


@pytest.mark.parametrize("name", HAMS)
def test_zero_and_equal_columns_give_finite_factors(name):
    for x in (torch.zeros(1, 6, 20), torch.ones(1, 6, 20), matrix(name, 1, 6, 20) * torch.tensor([1e-30])):
        out = hb.decompose(x.requires_grad_(), HAMS[name], bases="columns")
        assert all(part.isfinite().all() for part in out)
        out.reconstruction.sum().backward()
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", HAMS)
def test_repeated_columns_are_no_worse_than_random_bases(name):
    """With n < r some bases are equal and stay equal. The n others already span X."""
    x = matrix(name, 8, 16, 3)
    errors = [
        relative_error(hb.decompose(x, HAMS[name], steps=6, bases=bases).reconstruction, x)
        for bases in ("columns", HAMS[name].draw(8, 16, like=x))
    ]
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("name", HAMS)
def test_bptt_is_the_derivative_through_the_columns(name, steps):
    x = (matrix(name, 1, 6, 11) + (name == "nmf")).requires_grad_()

    def f(x):
        return hb.decompose(x, HAMS[name], steps=steps, bases="columns", grad="bptt").reconstruction

    assert gradcheck(f, (x,))


@pytest.mark.parametrize("grad", ["one-step", "truncated:1"])
@pytest.mark.parametrize("name", HAMS)
def test_columns_are_constants_of_other_gradients(name, grad):
    x = (matrix(name, 2, 6, 11) + (name == "nmf")).requires_grad_()
    gradients = [
        torch.autograd.grad(hb.decompose(x, HAMS[name], bases=bases, grad=grad).reconstruction.square().sum(), x)[0]
        for bases in ("columns", HAMS[name].select_columns(x.detach()))
    ]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_columns_of_half_precision_are_in_float32(dtype):
    x = torch.rand(2, 16, 37).to(dtype)
    assert HAMS["nmf"].select_columns(x).dtype == torch.float32
    out = hb.decompose(x, HAMS["nmf"], bases="columns")
    assert_close(out.reconstruction, hb.decompose(x.double(), HAMS["nmf"], bases="columns").reconstruction)


def test_nothing_is_random():
    x, state = torch.rand(2, 16, 37), torch.get_rng_state()
    for codes_init in ("softmax", "cosine", "uniform"):
        ham = hb.NMF(rank=5, codes_init=codes_init)
        first, second = (hb.decompose(x, ham, bases="columns").reconstruction for _ in range(2))
        assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_another_word_for_columns_is_an_error():
    with pytest.raises(hb.OptionError, match=r"decompose: .*bases.*columns"):
        hb.decompose(torch.rand(1, 4, 9), "nmf", rank=2, bases="column")
