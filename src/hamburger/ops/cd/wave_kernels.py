"""The whole of soft CD in one launch, in Gluon for Hopper.

Pieces, and what lies in memory: `hamburger.ops.cosine_wave_kernels`.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.ops.cosine_wave_kernels import (
    COUNTERS,
    EPS,
    NEW_D,
    assign,
    inverse_norms,
    load_stage,
    move_bases,
    product_layout,
    project_fine,
    row_layout,
    scratch_of,
    share_start,
    stage_rows,
    wait_for_bases,
    write_streamed_product,
)
from hamburger.ops.wave_kernels import arrive, load_columns, ready, seen_as, threads_meet, zero_of


@gluon.constexpr_function
def square_layout(R, W):
    """Of an R x R matrix, 4 x 4 of it in a thread at a time."""
    return gl.BlockedLayout([4, 4], [32 // (R // 4), R // 4], [W, 1], [1, 0])


@gluon.jit
def invert(b_a, R: gl.constexpr, W: gl.constexpr):
    """The inverse of a symmetric positive definite matrix with ones on its diagonal.   b_a: R R in float32   ->   R R

    Gauss-Jordan without exchange of rows, two pivots at a time. With the pivots' rows P of A, the 2 x 2 block B where
    they meet their columns, and those rows E of I, A - (P - E)^T B^-1 (P - E) is the swept matrix but for 2 on the
    pair's diagonal; sweeping all pairs leaves -A^-1. So a pair is one update of the whole matrix, which stays in
    registers: only two rows travel through shared memory, and by symmetry they are the two columns as well. The 2 is
    taken off at the end. Ones on the diagonal keep it from swallowing the digits of a small inverse.
    """
    square: gl.constexpr = square_layout(R, W)
    down: gl.constexpr = gl.SliceLayout(1, square)
    across: gl.constexpr = gl.SliceLayout(0, square)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    b_rows = seen_as(b_a, gl.float32, [R, R], line)
    b_entries = seen_as(b_a, gl.float32, [R * R, 1], line)
    o_i = gl.arange(0, R, down)
    o_j = gl.arange(0, R, across)
    b_all = b_a.load(square)
    for i in range(R // 2):
        k = 2 * i
        threads_meet()  # the rows of the pair before have been read
        b_a.store(b_all)
        threads_meet()
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
    threads_meet()
    return gl.where(o_i[:, None] == o_j[None, :], 2.0, 0.0) - b_all


@gluon.jit
def store_thirds(b_out, b_value):
    """A float32 as three bfloat16, which hold its 24 bits.   out: 3 M N"""
    b_first = b_value.to(gl.bfloat16)
    b_rest = b_value - b_first.to(gl.float32)
    b_second = b_rest.to(gl.bfloat16)
    b_out.index(0).store(b_first)
    b_out.index(1).store(b_second)
    b_out.index(2).store((b_rest - b_second.to(gl.float32)).to(gl.bfloat16))


@gluon.jit
def ridge(b_gram, b_norm, beta, R: gl.constexpr, W: gl.constexpr):
    """What X^T D and D are multiplied with to give codes and projector, in three bfloat16.   gram: R R   ->   3 R R

    D is here as its last update left it, the ham's own is D U with U = diag(1 / |d|). The matrix is
    U (U D^T D U + beta I)^-1. T scales what is inverted to ones on its diagonal: U T (T (U D^T D U + beta I) T)^-1 T.
    """
    square: gl.constexpr = square_layout(R, W)
    down: gl.constexpr = gl.SliceLayout(1, b_gram.type.layout)
    across: gl.constexpr = gl.SliceLayout(0, b_gram.type.layout)
    b_a = gl.allocate_shared_memory(gl.float32, [R, R], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    b_unit = 1.0 / gl.maximum(b_norm, EPS)
    b_t = gl.rsqrt(b_unit * b_unit * b_norm * b_norm + beta)
    b_ut = b_unit * b_t
    m_diagonal = gl.arange(0, R, down)[:, None] == gl.arange(0, R, across)[None, :]
    b_scaled = b_gram * gl.convert_layout(b_ut, down)[:, None] * gl.convert_layout(b_ut, across)[None, :]
    b_a.store(b_scaled + gl.where(m_diagonal, gl.convert_layout(beta * b_t * b_t, down)[:, None], 0.0))
    threads_meet()
    b_inverse = invert(b_a, R, W)
    b_left = gl.convert_layout(b_ut, gl.SliceLayout(1, square))
    b_right = gl.convert_layout(b_t, gl.SliceLayout(0, square))
    b_ridge = gl.allocate_shared_memory(gl.bfloat16, [3, R, R], gl.NVMMASharedLayout(128, 16, 2))
    store_thirds(b_ridge, b_inverse * b_left[:, None] * b_right[None, :])
    return b_ridge


@gluon.jit
def times_ridge(b_xd, b_ridge, BN: gl.constexpr, R: gl.constexpr):
    """The codes, to the digits of float32.   xd: BN R   ->   BN R"""
    b_n = gl.allocate_shared_memory(gl.bfloat16, [3, BN, R], gl.NVMMASharedLayout(128, 16, 2))
    store_thirds(b_n, b_xd)
    ready()
    # from the smallest products to the largest
    b_c = warpgroup_mma(b_n.index(2), b_ridge.index(0), b_xd, use_acc=False, is_async=True)
    b_c = warpgroup_mma(b_n.index(0), b_ridge.index(2), b_c, is_async=True)
    b_c = warpgroup_mma(b_n.index(1), b_ridge.index(1), b_c, is_async=True)
    b_c = warpgroup_mma(b_n.index(1), b_ridge.index(0), b_c, is_async=True)
    b_c = warpgroup_mma(b_n.index(0), b_ridge.index(1), b_c, is_async=True)
    b_c = warpgroup_mma(b_n.index(0), b_ridge.index(0), b_c, is_async=True)
    b_c = warpgroup_mma_wait(0, deps=[b_c])
    b_n._keep_alive()
    return b_c


@gluon.jit
def rows_times_ridge(b_d, b_ridge, zero):
    """Rows of the projector, transposed, to the digits of float32.   d: 2 BD R, in halves   zero: BD R   ->   BD R"""
    b_m = warpgroup_mma(b_d.index(1), b_ridge.index(1), zero, use_acc=False, is_async=True)
    b_m = warpgroup_mma(b_d.index(0), b_ridge.index(2), b_m, is_async=True)
    b_m = warpgroup_mma(b_d.index(1), b_ridge.index(0), b_m, is_async=True)
    b_m = warpgroup_mma(b_d.index(0), b_ridge.index(1), b_m, is_async=True)
    b_m = warpgroup_mma(b_d.index(0), b_ridge.index(0), b_m, is_async=True)
    return warpgroup_mma_wait(0, deps=[b_m])


@gluon.jit
def write_projector(
    p_copy, p_m, b_ridge, d, r, programs, i_p, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr
):  # fmt: skip
    """M^T = D (D^T D + beta I)^-1, for the gradient: a stage of its rows in one program.   m: d r"""
    BD: gl.constexpr = stage_rows(R)
    mma: gl.constexpr = product_layout(BD, R, W)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [2, BD, R], gl.NVMMASharedLayout(128, 16, 2))
    zero = gl.zeros([BD, R], gl.float32, mma)
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))[None, :]
    for i in range(i_p, D // BD, programs):
        threads_meet()
        b_d.index(0).store(load_stage(p_copy, i, BD, R, W))
        b_d.index(1).store(load_stage(p_copy + D * R, i, BD, R, W))
        ready()
        b_m = rows_times_ridge(b_d, b_ridge, zero)
        o_d = (i * BD + gl.arange(0, BD, gl.SliceLayout(1, mma)))[:, None]
        gl.store(p_m + o_d * r + o_r, b_m, mask=(o_d < d) & (o_r < r))
    b_d._keep_alive()


@gluon.jit
def normalize_own(
    p_d, b_norm, d, r, i_p, D: gl.constexpr, R: gl.constexpr, OWNERS: gl.constexpr, W: gl.constexpr
):  # fmt: skip
    """An owner brings its rows of the last D, which it wrote itself, to unit columns."""
    ROWS: gl.constexpr = min(D // OWNERS, 32)
    ld_d: gl.constexpr = row_layout(R, 4, W)
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))[None, :]
    b_unit = gl.convert_layout(1.0 / gl.maximum(b_norm, EPS), gl.SliceLayout(0, ld_d))[None, :]
    for i in range(D // OWNERS // ROWS):
        o_d = (i_p * (D // OWNERS) + i * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, ld_d)))[:, None]
        # ROWS R
        m_d = (o_d < d) & (o_r < r)
        b_d = gl.load(p_d + o_d * r + o_r, mask=m_d, other=0.0, cache_modifier=".cg")
        threads_meet()  # where there are few rows several warps have read the same
        gl.store(p_d + o_d * r + o_r, b_d * b_unit, mask=m_d)


@gluon.jit(do_not_specialize=["steps", "programs"])
def cd_kernel(
    p_x, p_start, p_d, p_copy, p_c, p_m, p_y, p_shares, p_scratch, p_count,
    d, n, r, steps, programs, temperature, beta, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_start,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr,
    N_FAST: gl.constexpr, PROJECTOR: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """K sweeps, the ridge codes under the last D, and Y = D C. Grid: programs of an image, b. X in bfloat16.

    start, d: b d r in float32. c: b n r. m: b d r in float32, the transposed projector, which the gradient needs beside
    D. steps > 0: the bases are of unit length. Every program inverts the same R x R matrix: if one did it for all, the
    others would only wait.
    """
    W: gl.constexpr = num_warps
    BD: gl.constexpr = stage_rows(R)
    mma: gl.constexpr = product_layout(BN, R, W)
    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_d += i_b * d * r
    p_copy += i_b * (2 * D * R)
    p_shares += i_b * programs * (D * R)
    p_mass, p_top, p_squares = scratch_of(p_scratch, i_b, programs, D, R)
    p_count += i_b * COUNTERS
    o_n = i_p * BN + gl.arange(0, BN, gl.SliceLayout(1, mma))
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))
    m_n, m_r = (o_n < n)[:, None], (o_r < r)[None, :]

    if i_p < OWNERS:
        share_start(p_start + i_b * s_start, p_copy, p_squares, d, r, i_p, D, R, OWNERS, W)
        arrive(p_count + NEW_D)
    b_x = gl.allocate_shared_memory(gl.bfloat16, [D // BD, BD, BN], gl.NVMMASharedLayout(128, 16, 2))
    b_xx = load_columns(p_x + i_b * s_xb, b_x, d, n, s_xd, s_xn, i_p, D, BD, BD, BN, N_FAST, W)
    b_scale = gl.convert_layout(inverse_norms(b_xx) / temperature, gl.SliceLayout(1, mma))
    for step in range(steps):
        wait_for_bases(p_count, step, OWNERS)
        z = zero_of(step)
        b_codes = assign(p_copy + z, p_squares + z, b_x, b_scale, m_n, m_r, step > 0, z, D, R, BN, W)
        move_bases(
            b_codes, b_scale, b_x, p_shares + z, p_mass + z, p_top + z, p_d + z, p_copy + z, p_squares + z, p_count,
            d, r, step, steps, programs, z, i_p, D, R, BN, OWNERS, MOST, W,
        )  # fmt: skip

    wait_for_bases(p_count, steps, OWNERS)
    b_xd, b_gram, b_norm = project_fine(p_copy, p_squares, b_x, zero_of(steps), True, D, R, BN, W)
    if i_p < OWNERS:
        normalize_own(p_d, b_norm, d, r, i_p, D, R, OWNERS, W)
    b_ridge = ridge(b_gram, b_norm, beta, R, W)
    b_codes = times_ridge(b_xd, b_ridge, BN, R)
    o_c = (i_b * n + o_n)[:, None] * r + o_r[None, :]
    gl.store(p_c + o_c, b_codes.to(p_c.dtype.element_ty), mask=m_n & m_r)
    if PROJECTOR:
        write_projector(p_copy, p_m + i_b * d * r, b_ridge, d, r, programs, i_p, D, R, W)
    b_ridge._keep_alive()
    if Y:
        b_unit = gl.convert_layout(1.0 / gl.maximum(b_norm, EPS), gl.SliceLayout(0, mma))
        b_scaled = (b_codes * b_unit[None, :]).to(gl.bfloat16)
        p_y += i_b * s_yb
        write_streamed_product(b_scaled, p_copy, p_y, d, n, s_yd, s_yn, i_p, D, R, BN, N_FAST, W)
