"""Layouts of Gluon: which thread of a program holds which entries of a tile, and how a tile lies in shared memory.

W is the number of warps. A thread that holds eight bfloat16 next to each other in memory moves 16 bytes at a time.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

# Of every bfloat16 tile in shared memory that the matrix units read.
SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


@gluon.constexpr_function
def product_layout(M, N, W):
    """Of an M x N product: warps along M as far as it has 16 rows for each, the others along N."""
    down = min(W, M // 16)
    instruction = [16, N // (W // down), 16]
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[down, W // down], instr_shape=instruction)


@gluon.constexpr_function
def row_layout(N, V, W):
    """Of rows of N contiguous numbers, V of them in a thread."""
    across = min(32, N // V)
    return gl.BlockedLayout([1, V], [32 // across, across], [W, 1], [1, 0])


@gluon.constexpr_function
def tile_layout(M, N, N_FAST, W):
    """Of a tile of X or Y, M rows and N columns: eight neighbours in a thread, along n where N_FAST, else along d."""
    if N_FAST:
        return row_layout(N, 8, W)
    return gl.BlockedLayout([8, 1], [M // 8, 256 // M], [1, W], [0, 1])
