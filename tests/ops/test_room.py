"""The largest tiles, compiled for a card that is not there, fit the room that `solvers.backend` asks for."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from test_block_compiles import Compiler  # noqa: E402

from hamburger.hams.fused import ROOM  # noqa: F401
from hamburger.ops import launch  # noqa: E402
from hamburger.ops.cd import fused as cd  # noqa: E402
from hamburger.ops.nmf import fused as nmf  # noqa: E402

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(launch.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("rank", ROOM)
def test_the_read_outs_fit(rank, dtype, monkeypatch):
    x, bases = torch.rand(1, 1024, 64).to(dtype), torch.rand(1, 1024, rank)
    made = Compiler(nmf.kernels.readout_kernel), Compiler(cd.readout_kernel)
    monkeypatch.setattr(nmf.kernels, "readout_kernel", made[0])
    monkeypatch.setattr(cd, "readout_kernel", made[1])
    monkeypatch.setattr(launch, "gram", lambda bases, dtype, t: torch.empty(1, rank, rank))
    nmf._sweeps(x, bases, 0, 1e-6, True, True)
    cd._launch(x, bases, bases, None, torch.empty(1, 64, rank), x)
    assert all(kernel.compiled.metadata.shared <= ROOM[rank] for kernel in made)
