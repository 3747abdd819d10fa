"""The grid of the resident NMF kernel. Compiled, with values: `test_resident_emulated.py`."""

from __future__ import annotations

import pytest
import torch

from hamburger.kernels import tiling
from hamburger.kernels.tiling import GpuProperties, ResidentGrid

pytest.importorskip("triton")
from resident_solves import H200

from hamburger.kernels.nmf_hopper import unit_columns


def fit(b, d, n, r, gpu=H200):
    return tiling.fit_resident(b, d, n, r, gpu)


def test_papers_size_is_resident():
    assert fit(1, 512, 16_384, 64) == ResidentGrid(D=512, R=64, BN=128, programs=128)
    assert fit(1, 512, 4_096, 64) == ResidentGrid(D=512, R=64, BN=64, programs=64)
    assert fit(3, 100, 1_000, 20) == ResidentGrid(D=128, R=64, BN=64, programs=16)
    assert fit(1, 512, 8_192, 64) == ResidentGrid(D=512, R=64, BN=128, programs=64)


@pytest.mark.parametrize("b, d, n, r", [(b, d, n, r) for b in (1, 5) for d in (8, 300, 512) for n in (1, 999, 16_896)
                                        for r in (1, 64, 100)])  # fmt: skip
def test_grid_fits_the_gpu_and_covers_every_column(b, d, n, r):
    grid = fit(b, d, n, r)
    if grid is None:
        assert b * -(-n // 128) > H200.processors or (d > 128 and r > 64)
        return
    assert b * grid.programs <= H200.processors
    assert grid.programs * grid.BN >= n > (grid.programs - 1) * grid.BN
    assert d <= grid.D and r <= grid.R
    assert tiling.resident_bytes(grid.D, grid.R, grid.BN) < H200.shared


@pytest.mark.parametrize("sizes", [(1, 512, 16_897, 64), (9, 512, 2_048, 64), (1, 513, 100, 64), (1, 64, 100, 129)])
def test_large_inputs_are_not_resident(sizes):
    assert fit(*sizes) is None


@pytest.mark.parametrize(
    "gpu",
    [GpuProperties((8, 0), 108, 166_912), GpuProperties((10, 0), 148, 232_448), GpuProperties((9, 0), 4, 232_448)],
)
def test_other_gpus_are_not_resident(gpu):
    assert fit(1, 512, 4_096, 64, gpu) is None


def test_cpu_tensors_are_not_resident():
    assert tiling.resident_grid(torch.zeros(1, 512, 64, dtype=torch.bfloat16), 64) is None


def test_nmf_has_about_one_unit_per_program():
    assert [unit_columns(programs) for programs in (1, 17, 33, 65)] == [32, 16, 8, 4]


@pytest.mark.parametrize("D", [128, 256, 512])
@pytest.mark.parametrize("R", [64, 128])
def test_shared_memory_for_64_columns_suffices_for_128(D, R):
    """On an H200. Else problems between the two would have to be cut otherwise."""
    room = [tiling.resident_bytes(D, R, BN) + tiling.DRIVER_SHARED_BYTES <= H200.shared for BN in (64, 128)]
    assert room[0] == room[1]
