"""The streaming variant without a GPU: its grid, and that it compiles for Hopper."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from resident_solves import H200

from hamburger.kernels import cosine, tiling
from hamburger.kernels import nmf_hopper as nmf
from hamburger.kernels.tiling import GpuProperties, StreamingGrid

pytestmark = pytest.mark.filterwarnings("ignore")  # Triton's own news


@pytest.fixture(params=[nmf.streaming_bytes, cosine.streaming_bytes], ids=["nmf", "vq and cd"])
def cut(request):
    return lambda *sizes: tiling.fit_streaming(*sizes, request.param)


def test_grid_has_at_most_one_program_per_multiprocessor_and_tile(cut):
    assert cut(1, 512, 65_536, 64, H200) == StreamingGrid(D=512, R=64, programs=132, images=1)
    assert cut(2, 500, 40_001, 50, H200) == StreamingGrid(D=512, R=64, programs=66, images=2)
    assert cut(9, 256, 100, 128, H200) == StreamingGrid(D=256, R=128, programs=2, images=9)
    assert cut(16, 512, 4_225, 64, H200) == StreamingGrid(D=512, R=64, programs=8, images=16)


@pytest.mark.parametrize("b", [1, 2, 100, 131, 132, 133, 200, 1_000])
def test_all_programs_fit_on_the_gpu_at_once(cut, b):
    grid = cut(b, 8, 10**6, 8, H200)
    assert grid.programs >= 1 and grid.programs * grid.images <= H200.processors
    launches = -(-b // grid.images)
    assert launches == -(-b // H200.processors)


@pytest.mark.parametrize("b, d, r", [(1, 513, 64), (1, 512, 100), (1, 512, 129), (70_000, 8, 8)])
def test_unsupported_sizes(cut, b, d, r):
    assert cut(b, d, 65_536, r, H200) is None


@pytest.mark.parametrize("gpu", [GpuProperties((8, 0), 108, 166_912), GpuProperties((10, 0), 148, 232_448)])
def test_other_gpus_are_unsupported(cut, gpu):
    assert cut(1, 512, 65_536, 64, gpu) is None


def test_cpu_tensors_are_unsupported():
    assert tiling.streaming_grid(torch.zeros(1, 512, 64, dtype=torch.bfloat16), 64, nmf.streaming_bytes) is None


def test_inputs_that_can_be_copied_asynchronously():
    x = torch.zeros(2, 32, 64, dtype=torch.bfloat16)
    assert (
        tiling.can_copy_async(x)
        and tiling.can_copy_async(x[:1].expand(2, -1, -1))
        and tiling.can_copy_async(x[..., 16:])
    )
    odd_rows = torch.zeros(2, 32, 65, dtype=torch.bfloat16)[..., :64]
    others = x.mT.contiguous().mT, x[..., ::2], x[..., 1:33], x[..., :63], odd_rows
    assert not any(map(tiling.can_copy_async, others))


def test_unsupported_cd_options():
    assert cosine.has_ridge_kernel(6, 0.1)
    assert (
        not cosine.has_ridge_kernel(0, 0.1)
        and not cosine.has_ridge_kernel(6, 0.0)
        and not cosine.has_ridge_kernel(6, 1e-4)
    )


SIZES = [(512, 64)]  # others, and NMF: `test_streaming_emulated.py` and `test_cosine_streaming_emulated.py`


@pytest.mark.parametrize("READOUT", [False, True])
@pytest.mark.parametrize("D, R", SIZES)
@pytest.mark.kernels
def test_vq_and_cd_compile_for_hopper_within_their_shared_memory(D, R, READOUT):
    pytest.importorskip("triton.experimental.gluon")
    from aot import compiled_for_hopper

    from hamburger.kernels.hopper.cosine_streaming import cosine_streaming_kernel

    sizes = {"D": D, "R": R, "BN": tiling.BN, "num_warps": 8, "s_xn": 1, "s_yn": 1}
    flags = {"N_FAST": True, "ASYNC": True, "FIRST": True, "CENTROIDS": False, "READOUT": READOUT, "Y": READOUT}
    kernel = compiled_for_hopper(
        cosine_streaming_kernel, sizes | flags, half=("p_x", "p_y"), divisible=("p_x", "width", "s_xb", "s_xd")
    )
    assert "wgmma.mma_async" in kernel.asm["ptx"] and "cp.async" in kernel.asm["ptx"]
    assert kernel.metadata.shared <= cosine.streaming_bytes(D, R)


@pytest.mark.parametrize("D, R", SIZES)
@pytest.mark.kernels
def test_ridge_needs_no_more_shared_memory_than_a_step(D, R):
    pytest.importorskip("triton.experimental.gluon")
    from aot import compiled_for_hopper

    from hamburger.kernels.hopper.ridge import ridge_kernel

    kernel = compiled_for_hopper(ridge_kernel, {"D": D, "R": R, "num_warps": 8})
    assert kernel.metadata.shared <= cosine.streaming_bytes(D, R)
