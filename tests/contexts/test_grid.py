"""Means over grids, against torch's own pooling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close

from hamburger.contexts.psp import pool_to_grid


@pytest.mark.parametrize("shape", [(12, 12), (13, 9), (5, 7), (1, 3), (65, 33)], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7])
def test_grid_pooling_matches_adaptive_pooling(shape, size):
    x = torch.randn(2, 3, *shape, dtype=torch.float64, requires_grad=True)
    ours, theirs = pool_to_grid(x, size), F.adaptive_avg_pool2d(x, size)
    assert_close(ours, theirs)
    g = torch.randn_like(ours)
    assert_close(torch.autograd.grad(ours, x, g)[0], torch.autograd.grad(theirs, x, g)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_pooling_keeps_dtype_and_constants(dtype):
    y = pool_to_grid(torch.full((1, 2, 13, 9), 3.0, dtype=dtype), 6)
    assert y.dtype == dtype
    assert_close(y, torch.full((1, 2, 6, 6), 3.0))


def test_an_exported_program_pools_every_size():
    class Pool(torch.nn.Module):
        def forward(self, x):
            return pool_to_grid(x, 3)

    h, w = (torch.export.Dim(name, min=2, max=64) for name in "hw")
    program = torch.export.export(Pool(), (torch.randn(1, 2, 12, 10),), dynamic_shapes={"x": {2: h, 3: w}})
    for shape in ((15, 10), (7, 8), (12, 12)):
        x = torch.randn(1, 2, *shape)
        assert_close(program.module()(x), F.adaptive_avg_pool2d(x, 3))
