"""How sizes are cut into tiles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hamburger.kernels.tiling import TARGET_PROGRAMS, power_of_two, split_positions, tile_sizes


@given(st.integers(1, 4096), st.integers(1, 2**20), st.integers(1, 512))
def test_tiles_are_powers_of_two(d, n, r):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        t = tile_sizes(d, n, r, dtype)
        assert all(size == power_of_two(size) for size in t)
        assert r <= t.R and min(t.R, t.BN, t.BD, t.BK, t.SD, t.SR, t.SN, t.FD, t.FR, t.FK, t.GD, t.FG) >= 16


@given(st.integers(1, 2**20), st.integers(1, 5000), st.sampled_from([16, 32, 64]))
def test_parts_cover_all_positions_and_none_is_empty(n, tiles, step):
    length, parts = split_positions(n, tiles, step)
    assert length % step == 0 and length * (parts - 1) < n <= length * parts
    assert parts == 1 or parts * tiles <= TARGET_PROGRAMS


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 512])
def test_next_power_of_two(count):
    assert count <= power_of_two(count) < 2 * count


def test_only_the_first_axis_of_a_grid_grows_with_channels_and_positions(monkeypatch):
    """The others end at 65,535. d is all positions where a ham goes along channels."""
    pytest.importorskip("triton")
    from hamburger.kernels import common, cosine, nmf

    grids = []
    for module in (common, nmf, cosine):
        monkeypatch.setattr(module, "launch", lambda kernel, grid, *_, **__: grids.append(grid))
    for d, n in ((2**20, 64), (64, 2**20), (2**20, 1024)):
        x, bases = torch.empty(1, d, n, device="meta"), torch.empty(1, d, 40, device="meta")
        nmf._solve_tiled(x, bases, 1, 1e-6, keep=True, product=True)
        cosine.run_steps(x, bases, 1, 0.1, tile_sizes(d, n, 40, x.dtype), unit=True)
    assert len(grids) > 20 and max(axis for grid in grids for axis in grid[1:]) <= 65_535
