"""Local and windowed NMF: grids of one to three axes, values, smoothness, windows, and what a wrong grid raises."""

from __future__ import annotations

import oracles
import pytest
import torch
from tolerances import assert_close, relative_error

import hamburger as hb

GRIDS = [(36,), (4, 9), (1, 36), (3, 4, 3)]


def both(n=36, d=10, r=5):
    return torch.rand(2, d, n, dtype=torch.float64), torch.rand(2, d, r, dtype=torch.float64)


def assert_matches(out, name, x, bases, **options):
    for b in range(len(x)):
        theirs = oracles.HAMS[name](x[b].numpy(), bases[b].numpy(), 6, **options)
        for ours, reference in zip(out, theirs, strict=True):
            assert_close(ours[b], torch.from_numpy(reference), slack=100)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_local_matches_the_oracle_on_every_grid(grid):
    x, bases = both()
    out = hb.decompose(x, "local", rank=5, smoothness=3.0, bases=bases, grid=grid)
    assert_matches(out, "local", x, bases, smoothness=3.0, grid=grid)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_windowed_matches_the_oracle_also_where_windows_do_not_divide_the_grid(grid, window):
    x, bases = both()
    out = hb.decompose(x, "windowed", rank=5, window=window, local_rank=2, bases=bases, grid=grid)
    assert_matches(out, "windowed", x, bases, window=window, local_rank=2, grid=grid)
    assert_close(out.reconstruction, out.bases @ out.codes)


@pytest.mark.parametrize("ham", [hb.Local(rank=5, smoothness=0), hb.Windowed(rank=5, local_rank=0, window=2)])
def test_without_their_addition_they_are_nmf(ham):
    x, bases = both()
    out, nmf = (hb.decompose(x, each, bases=bases, grid=(6, 6)) for each in (ham, hb.NMF(rank=5)))
    for ours, theirs in zip(out, nmf, strict=True):
        assert_close(ours, theirs, slack=10)


def test_without_a_grid_positions_are_a_line():
    x, bases = both()
    for name, options in {"local": {}, "windowed": {"window": 7}}.items():
        line, given = (hb.decompose(x, name, rank=5, bases=bases, grid=g, **options) for g in (None, (36,)))
        assert torch.equal(line.reconstruction, given.reconstruction)


def test_smoothness_lowers_the_differences_between_neighbours():
    x, bases = both()
    shares = []
    for smoothness in (0.0, 1.0, 10.0):
        out = hb.decompose(x, "local", rank=5, smoothness=smoothness, bases=bases, grid=(6, 6), steps=20)
        maps = (out.codes * out.bases.norm(dim=1)[..., None]).unflatten(2, (6, 6))
        shares.append(float(maps.diff(dim=2).square().sum() / maps.square().sum()))
    assert shares[0] > 2 * shares[1] > 4 * shares[2]


def test_local_removes_noise_of_a_smooth_map_better_than_nmf():
    across, down = torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16), indexing="ij")
    codes = torch.stack([across, down, (1 - across) * (1 - down)]).double().flatten(1)
    clean = torch.rand(1, 24, 3, dtype=torch.float64) @ codes
    x = (clean + 0.4 * torch.randn(clean.shape, dtype=torch.float64)).relu()
    bases = torch.rand(1, 24, 3, dtype=torch.float64)
    errors = [
        relative_error(hb.decompose(x, ham, steps=50, bases=bases, grid=(16, 16)).reconstruction, clean)
        for ham in (hb.Local(rank=3, smoothness=5.0), hb.NMF(rank=3))
    ]
    assert errors[0] < 0.8 * errors[1]


def test_scaling_an_atom_does_not_change_the_solution_of_local():
    x, _ = both()
    ham = hb.Local(rank=5, eps=0.0, grid=(6, 6))
    factors = ham.init(x)
    s = torch.rand(5, dtype=torch.float64) + 0.5
    scaled = hb.Factors(factors.bases * s, factors.codes / s[:, None])
    assert_close(ham.objective(x, scaled), ham.objective(x, factors))
    after, scaled_after = (ham.step(x, each) for each in (factors, scaled))
    assert_close(scaled_after.bases @ scaled_after.codes, after.bases @ after.codes)


def test_windows_have_their_own_bases_and_share_the_global_ones():
    """Each quarter of the map has an atom that occurs nowhere else; a rank of 2 is then enough."""
    maps, common = torch.zeros(1, 12, 8, 8, dtype=torch.float64), torch.rand(12, dtype=torch.float64)
    for i in range(4):
        codes = torch.rand(2, 4, 4, dtype=torch.float64)
        part = torch.einsum("dr,rhw->dhw", torch.stack([common, torch.rand(12, dtype=torch.float64)], 1), codes)
        maps[0, :, 4 * (i // 2) : 4 * (i // 2) + 4, 4 * (i % 2) : 4 * (i % 2) + 4] = part
    x, bases = maps.flatten(2), torch.rand(1, 12, 2, dtype=torch.float64)
    out = hb.decompose(x, hb.Windowed(rank=2, local_rank=1, window=4), steps=300, bases=bases, grid=(8, 8))
    nmf = hb.decompose(x, hb.NMF(rank=2), steps=300, bases=bases)
    assert out.bases.shape == (1, 12, 5) and out.codes.shape == (1, 5, 64)
    assert relative_error(out.reconstruction, x) < 0.7 * relative_error(nmf.reconstruction, x)


def test_layers_do_without_the_codes_of_all_windows(monkeypatch):
    monkeypatch.setattr(hb.Windowed, "expand_codes", None)
    hb.Hamburger(8, ham="windowed", rank=4, window=1)(torch.randn(1, 8, 6, 6)).sum().backward()


@pytest.mark.parametrize("name", ["local", "windowed"])
@pytest.mark.parametrize("size", [(20,), (5, 7), (3, 4, 5)], ids=str)
def test_layers_pass_the_grid_of_their_input(name, size):
    options = {"window": 3} if name == "windowed" else {}
    layer = hb.Hamburger(12, ham=name, rank=4, heads=2, **options).eval().double()
    z = torch.randn(2, 12, *size, dtype=torch.float64)
    x = (layer.lower(z.flatten(2))).relu()
    parts = [
        hb.decompose(x[:, 6 * s : 6 * s + 6], layer.ham.ham, bases=layer.ham.dictionary.bases[[s]], grid=size)
        for s in (0, 1)
    ]
    y = layer.norm(layer.upper(torch.cat([part.reconstruction for part in parts], 1)))
    assert_close(layer(z), z + y.unflatten(2, size), slack=100)
    assert_close(layer.context(z), y.unflatten(2, size), slack=100)
    for ham_options, flat in ({}, z.flatten(2)), ({"grid": size}, z):  # tokens are a line, unless the ham has a grid
        options |= {"ham_options": ham_options, "layout": "tokens"}
        tokens = hb.Hamburger(12, ham=name, rank=4, heads=2, **options).eval().double()
        tokens.load_state_dict(layer.state_dict())
        assert_close(tokens(z.flatten(2).mT), layer(flat).flatten(2).mT, slack=100)


def test_a_subclass_with_its_own_context_gets_the_grid():
    class Doubled(hb.Hamburger):
        def context(self, z):
            return 2 * super().context(z)

    torch.manual_seed(0)
    plain, doubled = hb.Hamburger(8, ham="local", rank=2).eval(), Doubled(8, ham="local", rank=2).eval()
    doubled.load_state_dict(plain.state_dict())
    z = torch.randn(1, 8, 5, 6)
    assert_close(doubled(z) - z, 2 * (plain(z) - z))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: hb.decompose(x, "local", rank=2, grid=(3, 4)),
            r"decompose: the grid must have as many.*\(3, 4\) for 20",
        ),
        (lambda x: hb.decompose(x, "nmf", rank=2, grid=(3, 4)), r"got \(3, 4\) for 20; pass \(h, w\) of the map"),
        (lambda x: hb.decompose(x, "local", rank=2, grid=20), "grid must be the shape of the positions.*got 20"),
        (lambda x: hb.decompose(x, "local", rank=2, grid="20"), "got '20'"),
        (lambda x: hb.decompose(x, "local", rank=2, grid=(1, 2, 2, 5)), "one, two or three sizes"),
        (lambda x: hb.decompose(x, "local", rank=2, grid=(-4, -5)), "at least 1"),
        (lambda x: hb.decompose(x, hb.Local(rank=2, grid=(3, 4))), r"Local: the grid must have as many positions as x"),
        (
            lambda x: hb.decompose(x, hb.Local(rank=2, grid=(4, 5)), grid=(5, 4)),
            r"built for the grid \(4, 5\), got positions on \(5, 4\); leave out one",
        ),
        (lambda x: hb.Local(smoothness=-1), "Local: smoothness must be a finite number at least 0"),
        (lambda x: hb.Windowed(window=0), "Windowed: window must be a whole number of at least 1"),
        (lambda x: hb.Windowed(rank=4, local_rank=4), "local_rank must be below the rank 4.*got 4; lower it"),
        (
            lambda x: hb.Hamburger(8, ham="local", rank=2, version="v2+", dual=True),
            "Local needs axis='spatial': channels have no neighbours",
        ),
        (
            lambda x: hb.Hamburger(8, ham="windowed", rank=4, init="online"),
            "init='online' needs final bases of a fixed",
        ),
        (lambda x: hb.Hamburger(8, ham="windowed", rank=4, init="carry"), "take init='random', 'fixed'"),
    ],
)
def test_errors_name_call_and_remedy(call, message):
    with pytest.raises(hb.HamburgerError, match=message):
        call(torch.rand(1, 8, 20))
