"""The ridge projector of CD, (D^T D + beta I)^-1 D^T, in Gluon for Hopper.

Each program inverts the whole r x r matrix in its registers. Products with the inverse use three bfloat16 per number,
which hold all 24 bits of a float32.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.kernels.hopper.common import (
    SWIZZLED,
    fence_shared,
    product_layout,
    reinterpret,
    row_layout,
    store_sums,
    thread_barrier,
)
from hamburger.kernels.hopper.cosine_streaming import rest, split_bases, unit_scales


@gluon.constexpr_function
def square_layout(R, W):
    """Layout of an R x R matrix, in blocks of 4 x 4 per thread."""
    return gl.BlockedLayout([4, 4], [32 // (R // 4), R // 4], [W, 1], [1, 0])


@gluon.jit
def invert(b_a, R: gl.constexpr, W: gl.constexpr):
    """The inverse of a symmetric positive definite matrix with ones on its diagonal.   b_a: R R in float32   ->   R R

    Gauss-Jordan without row exchange, two pivots at a time. Let P be the two pivot rows of A, B their 2 x 2 pivot block
    and E the same rows of I. A - (P - E)^T B^-1 (P - E) is A after elimination of the pair, except for an extra 2 on
    the pair's diagonal; after all pairs it is -A^-1 plus these 2, which are subtracted at the end. The matrix stays in
    registers; only two rows per pair pass through shared memory, and by symmetry they are the two columns as well. The
    ones on the diagonal keep the 2 from swallowing the digits of a small inverse.
    """
    square: gl.constexpr = square_layout(R, W)
    down: gl.constexpr = gl.SliceLayout(1, square)
    across: gl.constexpr = gl.SliceLayout(0, square)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    b_rows = reinterpret(b_a, gl.float32, [R, R], line)
    b_entries = reinterpret(b_a, gl.float32, [R * R, 1], line)
    o_i = gl.arange(0, R, down)
    o_j = gl.arange(0, R, across)
    b_all = b_a.load(square)
    for i in range(R // 2):
        k = 2 * i
        thread_barrier()  # the rows of the previous pair have been read
        b_a.store(b_all)
        thread_barrier()
        b_kk = b_entries.index(k * R + k).load(across)
        b_kl = b_entries.index(k * R + k + 1).load(across)
        b_ll = b_entries.index(k * R + R + k + 1).load(across)
        b_k = b_rows.index(k).load(across) - gl.where(o_j == k, 1.0, 0.0)
        b_l = b_rows.index(k + 1).load(across) - gl.where(o_j == k + 1, 1.0, 0.0)
        b_one = 1.0 / (b_kk * b_ll - b_kl * b_kl)
        b_qk = (b_ll * b_k - b_kl * b_l) * b_one
        b_ql = (b_kk * b_l - b_kl * b_k) * b_one
        b_k = b_rows.index(k).load(down) - gl.where(o_i == k, 1.0, 0.0)
        b_l = b_rows.index(k + 1).load(down) - gl.where(o_i == k + 1, 1.0, 0.0)
        b_all = b_all - b_k[:, None] * b_qk[None, :] - b_l[:, None] * b_ql[None, :]
    thread_barrier()
    return gl.where(o_i[:, None] == o_j[None, :], 2.0, 0.0) - b_all


@gluon.jit
def store_thirds(b_out, b_value):
    """Store a float32 as three bfloat16, which hold its 24 bits.   out: 3 M N"""
    b_first = b_value.to(gl.bfloat16)
    b_rest = b_value - b_first.to(gl.float32)
    b_second = b_rest.to(gl.bfloat16)
    b_out.index(0).store(b_first)
    b_out.index(1).store(b_second)
    b_out.index(2).store(rest(b_rest, b_second))


@gluon.jit
def ridge(b_gram, b_norm, beta, R: gl.constexpr, W: gl.constexpr):
    """The factor that turns D into its projector, as three bfloat16.   gram: R R   ->   3 R R

    D is not normalised yet; the bases of the ham are D U with U = diag(1 / |d|). The factor is
    U (U D^T D U + beta I)^-1. T scales the matrix to ones on its diagonal: U T (T (U D^T D U + beta I) T)^-1 T.
    """
    square: gl.constexpr = square_layout(R, W)
    down: gl.constexpr = gl.SliceLayout(1, b_gram.type.layout)
    across: gl.constexpr = gl.SliceLayout(0, b_gram.type.layout)
    b_a = gl.allocate_shared_memory(gl.float32, [R, R], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    b_unit = unit_scales(b_norm)
    b_t = gl.rsqrt(b_unit * b_unit * b_norm * b_norm + beta)
    b_ut = b_unit * b_t
    m_diagonal = gl.arange(0, R, down)[:, None] == gl.arange(0, R, across)[None, :]
    b_scaled = b_gram * gl.convert_layout(b_ut, down)[:, None] * gl.convert_layout(b_ut, across)[None, :]
    b_a.store(b_scaled + gl.where(m_diagonal, gl.convert_layout(beta * b_t * b_t, down)[:, None], 0.0))
    thread_barrier()
    b_inverse = invert(b_a, R, W)
    b_left = gl.convert_layout(b_ut, gl.SliceLayout(1, square))
    b_right = gl.convert_layout(b_t, gl.SliceLayout(0, square))
    b_ridge = gl.allocate_shared_memory(gl.bfloat16, [3, R, R], SWIZZLED)
    store_thirds(b_ridge, b_inverse * b_left[:, None] * b_right[None, :])
    return b_ridge


@gluon.jit
def rows_times_ridge(b_d, b_ridge, zero):
    """Rows of the transposed projector, in float32 precision.   d: 2 BD R, in halves   zero: BD R   ->   BD R"""
    b_m = warpgroup_mma(b_d.index(1), b_ridge.index(1), zero, use_acc=False, is_async=True)
    b_m = warpgroup_mma(b_d.index(0), b_ridge.index(2), b_m, is_async=True)
    b_m = warpgroup_mma(b_d.index(1), b_ridge.index(0), b_m, is_async=True)
    b_m = warpgroup_mma(b_d.index(0), b_ridge.index(1), b_m, is_async=True)
    b_m = warpgroup_mma(b_d.index(0), b_ridge.index(0), b_m, is_async=True)
    return warpgroup_mma_wait(0, deps=[b_m])


@gluon.jit
def add_gram(b_gram, b_high, b_low, FIRST: gl.constexpr):
    """Issue b_gram + D^T D of some rows of D, without the product of the low halves.   high, low: rows R"""
    b_gram = warpgroup_mma(b_high.permute([1, 0]), b_high, b_gram, use_acc=not FIRST, is_async=True)
    b_gram = warpgroup_mma(b_high.permute([1, 0]), b_low, b_gram, is_async=True)
    return warpgroup_mma(b_low.permute([1, 0]), b_high, b_gram, is_async=True)


@gluon.jit
def fine_gram(b_high, b_low, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """D^T D with both halves of D.   high, low: D/64 64 R   ->   R R"""
    b_gram = gl.zeros([R, R], gl.float32, product_layout(64, R, W))
    for i in gl.static_range(D // 64):
        b_gram = add_gram(b_gram, b_high.index(i), b_low.index(i), i == 0)
    return warpgroup_mma_wait(0, deps=[b_gram])


@gluon.jit
def ridge_kernel(
    p_d, p_unit, p_m, d, r, beta, D: gl.constexpr, R: gl.constexpr, num_warps: gl.constexpr
):  # fmt: skip
    """D with unit columns, and M^T = D (D^T D + beta I)^-1 for that D. Grid: tiles of 64 rows, b.

    A program owns 64 rows of both results. Each inverts the same R x R matrix, from all of D, which it holds in shared
    memory in halves, and multiplies its rows with the inverse. Programs do not wait for each other.

    d, unit, m: b d r in float32.
    """
    W: gl.constexpr = num_warps
    ld_d: gl.constexpr = row_layout(R, 8, W)
    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_d += i_b * d * r
    b_high = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_low = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_norm = gl.sqrt(split_bases(p_d, b_high, b_low, d, r, 0, D, R, W))
    fence_shared()
    b_gram = fine_gram(b_high, b_low, D, R, W)
    thread_barrier()
    b_high._keep_alive()  # the compiler ends a buffer's life where its last product starts
    b_low._keep_alive()
    b_ridge = ridge(b_gram, b_norm, beta, R, W)

    b_own = gl.allocate_shared_memory(gl.bfloat16, [2, 64, R], SWIZZLED)
    o_d = i_p * 64 + gl.arange(0, 64, gl.SliceLayout(1, ld_d))
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))
    # 64 R
    b_d = gl.load(p_d + o_d[:, None] * r + o_r[None, :], mask=(o_d < d)[:, None] & (o_r < r)[None, :], other=0.0)
    b_first = b_d.to(gl.bfloat16)
    b_own.index(0).store(b_first)
    b_own.index(1).store(rest(b_d, b_first))
    b_unit = gl.convert_layout(unit_scales(b_norm), gl.SliceLayout(0, ld_d))
    store_sums(p_unit + i_b * d * r, b_d * b_unit[None, :], i_p * 64, d, r)
    fence_shared()
    b_m = rows_times_ridge(b_own, b_ridge, gl.zeros([64, R], gl.float32, product_layout(64, R, W)))
    store_sums(p_m + i_b * d * r, b_m, i_p * 64, d, r)
    b_own._keep_alive()
    b_ridge._keep_alive()
