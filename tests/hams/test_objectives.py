"""The objective of every ham: its value, and where the theory says so, that no step and no half-step raises it."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_close

import hamburger as hb

MONOTONE = {
    "nmf": hb.NMF(rank=5, eps=0.0),
    "hals": hb.HALS(rank=5, eps=0.0),
    "hals-eps": hb.HALS(rank=5, eps=0.1),
    "robust": hb.Robust(rank=5, eps=0.0, threshold=0.3),
    "local": hb.Local(rank=5, eps=0.0, smoothness=3.0),
    "local-only": hb.Local(rank=5, eps=0.0, smoothness=1e4),
    "windowed": hb.Windowed(rank=5, eps=0.0, window=3, local_rank=2),
    "learned": hb.Learned(rank=5, eps=0.0, relaxation=0.4),
    "learned-over": hb.Learned(rank=5, eps=0.0, relaxation=1.95),
}


def data(kind, n):
    x = torch.rand(3, 20, n, dtype=torch.float64)
    return x if kind == "dense" else (x - 0.6).relu() + 1e-9  # the ratios of updates are then far from 1


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("grid", [(48,), (6, 8), (4, 3, 4)], ids=str)
@pytest.mark.parametrize("name", MONOTONE)
def test_no_step_raises_the_objective(name, grid, kind):
    if len(grid) != 2 and not MONOTONE[name].needs_grid:
        pytest.skip("does not depend on the grid")
    x, ham = data(kind, 48), MONOTONE[name].on_grid(grid)
    factors = ham.init(x)
    last = ham.objective(x, factors)
    for _ in range(30):
        half = ham.objective(x, hb.Factors(ham.finish(x, factors)[0], ham.finish(x, factors)[1]))
        factors = ham.step(x, factors)
        value = ham.objective(x, factors)
        assert value.shape == (3,)
        assert (half <= last * (1 + 1e-12)).all()
        assert (value <= half * (1 + 1e-12)).all()
        assert (factors.bases >= 0).all() and (factors.codes >= 0).all()
        last = value


@pytest.mark.parametrize("name", ["vq", "cd"])
def test_a_step_of_a_clustering_ham_may_raise_it(name):
    x, ham = torch.rand(50, 16, 42, dtype=torch.float64), hb.hams.create(name, rank=4)
    paths = [ham.solve(x, ham.init(x, torch.rand_like(x[:, :, :4])), 0)]
    for _ in range(8):
        paths.append(ham.step(x, paths[-1]))
    values = torch.stack([ham.objective(x, each) for each in paths])
    assert (values.diff(dim=0) > 1e-6).any() and values[-1].mean() < values[0].mean()


def roughness(codes, grid):
    """Sum over edges of (c_i - c_j)^2 / (2 axes), edge by edge."""
    maps, total = codes.unflatten(1, grid), 0
    for axis in range(1, len(grid) + 1):
        for i in range(grid[axis - 1] - 1):
            total = total + (maps.select(axis, i) - maps.select(axis, i + 1)).square().flatten(1).sum(1)
    return total / (2 * len(grid))


def test_objectives_match_their_formulas():
    x, grid = torch.rand(2, 7, 12, dtype=torch.float64), (3, 4)
    outs = {name: hb.decompose(x, hb.hams.create(name, rank=4), grid=grid, steps=2) for name in hb.hams.names()}
    for name, (bases, codes, product) in outs.items():
        value = hb.hams.create(name, rank=4).on_grid(grid).objective(x, hb.Factors(bases, codes))
        for b in range(2):
            residual = x[b] - product[b]
            expected = residual.square().sum() / 2
            if name == "cd":
                expected = expected + 0.1 * codes[b].square().sum() / 2
            if name == "local":
                expected = expected + (bases[b].square().sum(0) * roughness(codes[b], grid)).sum() / 2
            if name == "robust":
                t = x[b].square().mean().sqrt()
                sparse = torch.nn.functional.softshrink(residual, float(t))
                expected = (residual - sparse).square().sum() / 2 + t * sparse.abs().sum()
            assert_close(value[b], expected, slack=100)


def test_hams_without_codes_take_those_of_the_readout():
    x, ham = torch.rand(2, 7, 12, dtype=torch.float64), hb.VQ(rank=4)
    factors = ham.solve(x, ham.init(x), 3)
    assert factors.codes is None
    assert_close(ham.objective(x, factors), (x - factors.bases @ ham.readout(x, factors)).square().sum((1, 2)) / 2)
