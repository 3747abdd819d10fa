"""The solve in one launch, as far as a machine without a GPU can tell: its cut, and that it compiles for the card."""

from __future__ import annotations

import pytest
import torch

from hamburger.ops import wave
from hamburger.ops.wave import Card, Wave, cut, shared_bytes

H200 = Card((9, 0), processors=132, shared=232_448)


def test_the_papers_size_is_one_wave():
    assert cut(1, 512, 16_384, 64, H200) == Wave(D=512, R=64, BN=128, programs=128, columns=8)
    assert cut(1, 512, 4_096, 64, H200) == Wave(D=512, R=64, BN=64, programs=64, columns=8)
    assert cut(3, 100, 1_000, 20, H200) == Wave(D=128, R=64, BN=64, programs=16, columns=32)


@pytest.mark.parametrize("b, d, n, r", [(b, d, n, r) for b in (1, 5) for d in (8, 300, 512) for n in (1, 999, 16_896)
                                        for r in (1, 64, 100)])  # fmt: skip
def test_every_program_is_on_the_card_and_every_column_in_a_program(b, d, n, r):
    found = cut(b, d, n, r, H200)
    if found is None:
        assert b * -(-n // 128) > H200.processors or shared_bytes(512, 128, 128) > H200.shared
        return
    assert b * found.programs <= H200.processors
    assert found.programs * found.BN >= n > (found.programs - 1) * found.BN
    assert d <= found.D and r <= found.R
    assert shared_bytes(found.D, found.R, found.BN) < H200.shared


@pytest.mark.parametrize("sizes", [(1, 512, 16_897, 64), (9, 512, 2_048, 64), (1, 513, 100, 64), (1, 64, 100, 129)])
def test_what_does_not_fit_takes_several_launches(sizes):
    assert cut(*sizes, H200) is None


@pytest.mark.parametrize("card", [Card((8, 0), 108, 166_912), Card((10, 0), 148, 232_448), Card((9, 0), 4, 232_448)])
def test_other_cards_take_several_launches(card):
    assert cut(1, 512, 4_096, 64, card) is None


def test_a_tensor_on_the_cpu_is_no_wave():
    assert wave.wave_of(torch.zeros(1, 512, 64, dtype=torch.bfloat16), 64) is None


@pytest.mark.filterwarnings("ignore")  # Triton's own news
@pytest.mark.parametrize("D, R, BN", [(512, 64, 128), (128, 64, 64), (256, 128, 64)])
def test_it_compiles_for_hopper_within_its_shared_memory(D, R, BN):
    pytest.importorskip("triton.experimental.gluon")
    from aot import compiled_for_hopper

    from hamburger.ops.nmf.wave_kernels import nmf_kernel

    sizes = {"D": D, "R": R, "BN": BN, "COLS": 8, "num_warps": 8}
    flags = {"N_FAST": True, "CODES": True, "RATIO": True, "Y": True}
    half = ("p_x", "p_copy", "p_ratio", "p_y", "p_sums")
    kernel = compiled_for_hopper(nmf_kernel, sizes | flags, half=half, whole=("p_count",))
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert kernel.metadata.shared <= shared_bytes(D, R, BN)
