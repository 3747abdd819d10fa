"""What CD's read-out multiplies with, in a launch of its own, in Gluon. Pieces: `hamburger.ops.cd.wave_kernels`."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.ops.cd.wave_kernels import ridge, rows_times_ridge
from hamburger.ops.cosine_stream_kernels import split_bases
from hamburger.ops.cosine_wave_kernels import EPS, product_layout, row_layout
from hamburger.ops.stream_kernels import store_sums
from hamburger.ops.wave_kernels import ready, threads_meet


@gluon.jit
def fine_gram(b_high, b_low, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """D^T D with both halves of D.   high, low: D/64 64 R   ->   R R"""
    b_gram = gl.zeros([R, R], gl.float32, product_layout(64, R, W))
    for i in gl.static_range(D // 64):
        b_h, b_l = b_high.index(i), b_low.index(i)
        b_gram = warpgroup_mma(b_h.permute([1, 0]), b_h, b_gram, use_acc=i > 0, is_async=True)
        b_gram = warpgroup_mma(b_h.permute([1, 0]), b_l, b_gram, is_async=True)
        b_gram = warpgroup_mma(b_l.permute([1, 0]), b_h, b_gram, is_async=True)
    return warpgroup_mma_wait(0, deps=[b_gram])


@gluon.jit
def ridge_kernel(
    p_d, p_unit, p_m, d, r, beta, D: gl.constexpr, R: gl.constexpr, num_warps: gl.constexpr
):  # fmt: skip
    """D with columns of unit length, and M^T = D (D^T D + beta I)^-1 for that D. Grid: tiles of 64 rows, b.

    d, unit, m: b d r in float32. Every program inverts the same R x R matrix and multiplies its own rows with it.
    """
    W: gl.constexpr = num_warps
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    ld_d: gl.constexpr = row_layout(R, 8, W)
    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_d += i_b * d * r
    b_high = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], swizzled)
    b_low = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], swizzled)
    b_norm = gl.sqrt(split_bases(p_d, b_high, b_low, d, r, D, R, W))
    ready()
    b_gram = fine_gram(b_high, b_low, D, R, W)
    threads_meet()
    b_high._keep_alive()  # as in `project_fine`
    b_low._keep_alive()
    b_ridge = ridge(b_gram, b_norm, beta, R, W)

    b_own = gl.allocate_shared_memory(gl.bfloat16, [2, 64, R], swizzled)
    o_d = i_p * 64 + gl.arange(0, 64, gl.SliceLayout(1, ld_d))
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))
    # 64 R
    b_d = gl.load(p_d + o_d[:, None] * r + o_r[None, :], mask=(o_d < d)[:, None] & (o_r < r)[None, :], other=0.0)
    b_first = b_d.to(gl.bfloat16)
    b_own.index(0).store(b_first)
    b_own.index(1).store((b_d - b_first.to(gl.float32)).to(gl.bfloat16))
    b_unit = gl.convert_layout(1.0 / gl.maximum(b_norm, EPS), gl.SliceLayout(0, ld_d))
    store_sums(p_unit + i_b * d * r, b_d * b_unit[None, :], i_p * 64, d, r)
    ready()
    b_m = rows_times_ridge(b_own, b_ridge, gl.zeros([64, R], gl.float32, product_layout(64, R, W)))
    store_sums(p_m + i_b * d * r, b_m, i_p * 64, d, r)
    b_own._keep_alive()
    b_ridge._keep_alive()
