"""The bread of many columns: when it is taken, that it compiles for the card, and on a card its values."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from resident_solves import H200

from hamburger.kernels import block_launches, launcher
from hamburger.kernels.tiling import GpuProperties
from hamburger.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore")  # Triton's own news


def test_each_tile_of_rows_has_equally_many_programs_and_those_many_tiles():
    assert block_launches.fit_gemm(1, 512, 65_536, 512, H200) == (4, 33)
    assert block_launches.fit_gemm(16, 300, 4_224, 600, H200) == (5, 26)
    enough = block_launches.MIN_GEMM_TILES * 33 * 64
    assert 16_384 < enough < 65_536, "the two sizes at which both kernels were timed"
    assert block_launches.fit_gemm(1, 512, enough, 512, H200) == (4, 33)
    assert block_launches.fit_gemm(1, 512, enough - 64, 512, H200) is None


@pytest.mark.parametrize("c, d", [(513, 512), (64, 512), (512, 64), (512, 133 * 128)])
def test_what_it_is_not_made_for(c, d):
    assert block_launches.fit_gemm(1, c, 10**6, d, H200) is None


@pytest.mark.parametrize("card", [GpuProperties((8, 0), 108, 166_912), GpuProperties((10, 0), 148, 232_448)])
def test_other_cards(card):
    assert block_launches.fit_gemm(1, 512, 65_536, 512, card) is None


def test_a_tensor_on_the_cpu():
    x, weight = torch.zeros(1, 512, 65_536, dtype=torch.bfloat16), torch.zeros(512, 512, dtype=torch.bfloat16)
    assert block_launches.gemm_grid(x, weight, None, x) is None


@pytest.mark.skipif(launcher.INTERPRETED, reason="an interpreted kernel is not compiled")
@pytest.mark.kernels
def test_it_compiles_for_hopper_within_its_shared_memory():
    pytest.importorskip("triton.experimental.gluon")
    from aot import compiled_for_hopper

    from hamburger.kernels.hopper.gemm import gemm_kernel

    # the way back, which needs most of it
    sizes = {"C": 512, "K": 512, "num_warps": 8, "s_xn": 1, "s_mn": 1, "s_zn": 1, "s_wd": 1}
    flags = {"BIAS": False, "MORE": True, "RECTIFY": False, "C_FAST": False}
    strides = [f"s_{of}" for of in ("xb", "xc", "mb", "md", "zb", "zd", "wc")]
    tensors = ("p_x", "p_w", "p_more", "p_z")
    kernel = compiled_for_hopper(
        gemm_kernel, sizes | flags, half=tensors, divisible=(*tensors, "p_bias", "n", "d", *strides)
    )
    assert "wgmma.mma_async" in kernel.asm["ptx"] and "cp.async" in kernel.asm["ptx"]
    assert kernel.metadata.shared <= block_launches.gemm_shared_bytes(512)


#         b  c    n       d
SHAPES = [(1, 512, 65_536, 512), (16, 512, 4_224, 512), (3, 300, 10_000, 200), (70, 72, 208, 520), (1, 512, 4_224, 512)]


@pytest.fixture
def calls(monkeypatch):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper card")
    monkeypatch.setattr(block_launches, "MIN_GEMM_TILES", 2)
    found, original = [], block_launches.launch_gemm
    monkeypatch.setattr(block_launches, "launch_gemm", lambda *a, **k: (found.append(1), original(*a, **k)))
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_the_bread_on_a_card(shape, calls, monkeypatch):
    b, c, n, d = shape
    x = torch.randn(b, c, n, device="cuda", dtype=torch.bfloat16)
    x[0, 0, 77] = float("nan")
    weight, bias = torch.randn(d, c, device="cuda", dtype=torch.bfloat16), torch.randn(d, device="cuda")

    def made():
        return block_launches.apply_bread(x, weight, bias, torch.bfloat16, out=torch.bfloat16, rectify=True)

    z = made()
    assert len(calls) == 1 and all(torch.equal(made().nan_to_num(), z.nan_to_num()) for _ in range(20))
    monkeypatch.setattr(block_launches, "gemm_grid", lambda *_: None)
    assert z[0, :, 77].isnan().all() and z.isnan().sum() == d
    wanted = torch.relu(weight.double() @ x.double() + bias.double()[:, None])
    for found in (z, made()):
        assert_close(found.nan_to_num(), wanted.nan_to_num())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fresh", [False, True])
def test_the_way_back_on_a_card(shape, fresh, calls):
    b, d, n, c = shape
    ds, dz = torch.randn(b, c, n, device="cuda").bfloat16(), torch.randn(b, d, n, device="cuda").bfloat16()
    weight = torch.randn(d, c, device="cuda", dtype=torch.bfloat16)
    ds *= d**0.5
    wanted = ds.double() + weight.double().mT @ dz.double()
    dx = ds if fresh else torch.empty_like(ds)
    block_launches.bread_backward(ds, dz, weight, dx, torch.bfloat16)
    assert len(calls) == 1
    assert_close(dx, wanted)
