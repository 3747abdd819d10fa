"""The solve in one launch, as far as a machine without a GPU can tell: its cut, and that it compiles for the card."""

from __future__ import annotations

import pytest
import torch

from hamburger.kernels import tiling
from hamburger.kernels.tiling import GpuProperties, ResidentGrid

pytest.importorskip("triton")
from resident_solves import H200, NEEDS

from hamburger.kernels import cosine_hopper as cd
from hamburger.kernels.cosine_hopper import partial_sums_dtype, reducer_count
from hamburger.kernels.nmf_hopper import unit_columns


@pytest.fixture(params=NEEDS)
def ham(request):
    return request.param


def cut(b, d, n, r, card=H200, ham="nmf"):
    return tiling.fit_resident(b, d, n, r, card, NEEDS[ham])


def test_the_papers_size_is_one_wave(ham):
    assert cut(1, 512, 16_384, 64, ham=ham) == ResidentGrid(D=512, R=64, BN=128, programs=128)
    assert cut(1, 512, 4_096, 64, ham=ham) == ResidentGrid(D=512, R=64, BN=64, programs=64)
    assert cut(3, 100, 1_000, 20, ham=ham) == ResidentGrid(D=128, R=64, BN=64, programs=16)
    assert cut(1, 512, 8_192, 64, ham=ham) == ResidentGrid(D=512, R=64, BN=128, programs=64)


@pytest.mark.parametrize("b, d, n, r", [(b, d, n, r) for b in (1, 5) for d in (8, 300, 512) for n in (1, 999, 16_896)
                                        for r in (1, 64, 100)])  # fmt: skip
def test_every_program_is_on_the_card_and_every_column_in_a_program(b, d, n, r, ham):
    found = cut(b, d, n, r, ham=ham)
    if found is None:
        assert b * -(-n // 128) > H200.processors or (ham == "nmf" and d > 128 and r > 64)
        return
    assert b * found.programs <= H200.processors
    assert found.programs * found.BN >= n > (found.programs - 1) * found.BN
    assert d <= found.D and r <= found.R
    assert NEEDS[ham](found.D, found.R, found.BN) < H200.shared


@pytest.mark.parametrize("sizes", [(1, 512, 16_897, 64), (9, 512, 2_048, 64), (1, 513, 100, 64), (1, 64, 100, 129)])
def test_what_does_not_fit_takes_several_launches(sizes, ham):
    assert cut(*sizes, ham=ham) is None


@pytest.mark.parametrize(
    "card",
    [GpuProperties((8, 0), 108, 166_912), GpuProperties((10, 0), 148, 232_448), GpuProperties((9, 0), 4, 232_448)],
)
def test_other_cards_take_several_launches(card, ham):
    assert cut(1, 512, 4_096, 64, card, ham) is None


def test_a_tensor_on_the_cpu_is_no_wave(ham):
    assert tiling.resident_grid(torch.zeros(1, 512, 64, dtype=torch.bfloat16), 64, NEEDS[ham]) is None


def test_there_are_about_as_many_units_of_nmf_as_programs():
    assert [unit_columns(programs) for programs in (1, 17, 33, 65)] == [32, 16, 8, 4]


@pytest.mark.parametrize("n, rows", [(100, 256), (1_000, 32), (4_096, 8), (16_384, 4), (16_896, 4)])
def test_rows_of_an_owner(n, rows):
    found = cut(1, 512, n, 64, ham="vq")
    assert found.D // reducer_count(found) == rows and reducer_count(found) <= found.programs


def test_many_shares_are_written_in_half_the_bytes():
    sizes = {(1, 512, 1_024, 64): torch.float32, (1, 512, 4_096, 64): torch.int16, (1, 512, 16_384, 64): torch.int16,
             (1, 512, 8_192, 128): torch.float32}  # fmt: skip
    assert {size: partial_sums_dtype(cut(*size, ham="vq")) for size in sizes} == sizes


def test_what_the_kernel_of_cd_cannot_do():
    assert cd.has_ridge_kernel(6, 0.1)
    assert not cd.has_ridge_kernel(0, 0.1) and not cd.has_ridge_kernel(6, 0.0) and not cd.has_ridge_kernel(6, 1e-4)


@pytest.mark.filterwarnings("ignore")  # Triton's own news
@pytest.mark.kernels
def test_vq_compiles_for_hopper_within_its_shared_memory():
    """With partial sums of int16, at the paper's d. The other variants: `test_*_emulated.py`."""
    pytest.importorskip("triton.experimental.gluon")
    from aot import compiled_for_hopper

    from hamburger.kernels.hopper.cosine_resident import vq_resident_kernel

    sizes = {"D": 512, "R": 64, "BN": 128, "OWNERS": 128, "MOST": 128, "num_warps": 8}
    kernel = compiled_for_hopper(
        vq_resident_kernel, sizes | {"N_FAST": True, "Y": True},
        half=("p_x", "p_copy", "p_y"), whole=("p_count",), more={"p_shares": "*i16"},
    )  # fmt: skip
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert kernel.metadata.shared <= NEEDS["vq"](512, 64, 128)


@pytest.mark.parametrize("D", [128, 256, 512])
@pytest.mark.parametrize("R", [64, 128])
def test_what_has_room_for_64_columns_has_it_for_128(D, R, ham):
    """On an H200. Else problems between the two would have to be cut otherwise."""
    room = [NEEDS[ham](D, R, BN) + tiling.DRIVER_SHARED_BYTES <= H200.shared for BN in (64, 128)]
    assert room[0] == room[1]
