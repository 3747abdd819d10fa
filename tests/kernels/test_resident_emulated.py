"""The resident NMF kernel, compiled for Hopper and emulated on a CPU: values for any order of programs."""

from __future__ import annotations

import pytest
import torch

from hamburger.kernels import common, tiling
from hamburger.kernels.tiling import ResidentGrid, fit_resident

if not tiling.has_gluon():
    pytest.skip("Triton or its Gluon is missing", allow_module_level=True)

from emulated import Emulated
from resident_solves import EPS, H200, SMALL, at_random, error, poisoned_memory, solve

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(common.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]


@pytest.fixture(autouse=True)
def poisoned():
    with poisoned_memory():
        yield


def reference(x, d, steps, eps=EPS):
    """float64, one image, forms D C explicitly.   x: d n   d: d r   ->   D, C, D C, C / (D^T D C + eps)"""
    x, d = x.double(), d.double()
    weights = torch.exp(d.T @ x)
    c = weights / weights.sum(0)
    for step in range(steps + 1):
        ratio = c / (d.T @ (d @ c) + eps)
        c = ratio * (d.T @ x)
        if step < steps:
            d = d * (x @ c.T) / (d @ c @ c.T + eps)
    return d, c, d @ c, ratio


CASES = {
    "plain": ((1, 128, 200, 64, 2), {}),
    "no step": ((1, 128, 200, 64, 0), {}),
    "two images, all padded": ((2, 100, 130, 20, 2), {}),
    "odd n, and 0 / 0 beyond it": ((1, 100, 131, 20, 2), {"eps": 0.0}),
    "odd n, padded, and 0 / 0 beyond it": ((2, 100, 131, 20, 2), {"eps": 0.0, "padded": True}),
    "channels last, codes in bfloat16": ((1, 128, 200, 64, 1), {"channels_last": True, "dtype": torch.bfloat16}),
    "a unit of four columns for each of many programs": ((1, 128, 8_200, 64, 1), {"keep": False}),
    "rank 100": ((1, 256, 300, 100, 1), {}),
    "d = 512, 128 columns per program": ((1, 512, 300, 64, 2), {"gpu": SMALL}),
}


@pytest.mark.parametrize("sizes, options", CASES.values(), ids=CASES)
def test_values(sizes, options):
    launcher = Emulated()
    x, bases, (d, c, y, ratio) = solve(*sizes, launcher, **options)
    assert launcher.compiled.metadata.launch_cooperative_grid  # its programs wait for each other
    assert y.stride() == torch.empty_like(x).stride() and c.dtype == options.get("dtype", torch.float32)
    assert (ratio is None) == (not options.get("keep", True))
    for i in range(len(x)):
        expected = reference(x[i], bases[i], sizes[-1], options.get("eps", EPS))
        assert max(map(error, (d[i], c[i].T, y[i]), expected)) < 5e-3
        assert ratio is None or error(ratio[i].T, expected[3]) < 5e-3


def test_cases_cover_different_tilings():
    grids = {fit_resident(*sizes[:4], options.get("gpu", H200)) for sizes, options in CASES.values()}
    assert {ResidentGrid(128, 64, 128, 65), ResidentGrid(256, 128, 64, 5), ResidentGrid(512, 64, 128, 3)} < grids


def test_equal_bits_for_any_program_order():
    def outputs(order):
        return solve(2, 100, 130, 20, 2, Emulated(order))[2]

    first = outputs(list)
    for order in (lambda left: left[::-1], at_random(0)):
        assert all(torch.equal(a, b) for a, b in zip(first, outputs(order), strict=True))
