"""The largest tiles, compiled without a GPU, fit into the shared memory that `kernels.dispatch` requires."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from test_block_compiles import Compiler  # noqa: E402

from hamburger.kernels import common, nmf  # noqa: E402
from hamburger.kernels.dispatch import SHARED_BYTES  # noqa: E402

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(common.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("rank", SHARED_BYTES)
def test_read_outs_fit_into_shared_memory(rank, dtype, monkeypatch):
    x, bases = torch.rand(1, 1024, 64).to(dtype), torch.rand(1, 1024, rank)
    made = Compiler(nmf.codes_kernel), Compiler(common.readout_kernel)
    monkeypatch.setattr(nmf, "codes_kernel", made[0])
    monkeypatch.setattr(common, "readout_kernel", made[1])
    monkeypatch.setattr(common, "gram_matrix", lambda bases, dtype, t: torch.empty(1, rank, rank))
    nmf._solve_tiled(x, bases, 0, 1e-6, True, True)
    common.launch_readout(x, bases, bases, None, torch.empty(1, 64, rank), x)
    assert all(kernel.compiled.metadata.shared <= SHARED_BYTES[rank] for kernel in made)
