"""The whole of soft CD in one launch, in Gluon for Hopper. Steps of a sweep: `hamburger.ops.cosine_wave_kernels`."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from hamburger.ops.cd.ridge_kernels import ridge, rows_times_ridge, times_ridge
from hamburger.ops.cosine_bases_kernels import (
    inverse_norms,
    load_stage,
    project_fine,
    stage_rows,
    unit_scales,
    write_streamed_product,
)
from hamburger.ops.cosine_wave_kernels import (
    assign,
    begin_with,
    exchange_of,
    move_bases,
    of_this_sweep,
    wait_for_bases,
)
from hamburger.ops.layouts import SWIZZLED, product_layout, row_layout
from hamburger.ops.wave_kernels import load_columns, ready, threads_meet, zero_of


@gluon.jit
def write_projector(
    p_copy, p_m, b_ridge, d, r, programs, i_p, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr
):  # fmt: skip
    """This program's rows of M^T = D (D^T D + beta I)^-1, for the gradient: every programs-th stage.

    copy: 2 D R, the halves of D   m: d r in float32   ridge: 3 R R, in shared memory
    """
    BD: gl.constexpr = stage_rows(R)
    mma: gl.constexpr = product_layout(BD, R, W)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [2, BD, R], SWIZZLED)
    zero = gl.zeros([BD, R], gl.float32, mma)
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))[None, :]
    for i in range(i_p, D // BD, programs):
        threads_meet()  # the stage before has been multiplied
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
    b_unit = gl.convert_layout(unit_scales(b_norm), gl.SliceLayout(0, ld_d))[None, :]
    for i in range(D // OWNERS // ROWS):
        o_d = (i_p * (D // OWNERS) + i * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, ld_d)))[:, None]
        # ROWS R
        m_d = (o_d < d) & (o_r < r)
        b_d = gl.load(p_d + o_d * r + o_r, mask=m_d, other=0.0, cache_modifier=".cg")
        threads_meet()  # where there are few rows several warps have read the same
        gl.store(p_d + o_d * r + o_r, b_d * b_unit, mask=m_d)


@gluon.jit(do_not_specialize=["steps", "programs"])
def cd_kernel(
    p_x, p_initial, p_d, p_copy, p_c, p_m, p_y, p_shares, p_scratch, p_count,
    d, n, r, steps, programs, temperature, beta, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_initial,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr,
    N_FAST: gl.constexpr, PROJECTOR: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """K sweeps, the ridge codes under the last D, and where Y the product D C. Grid: programs of an image, b.

    A program owns BN columns, and one of the first OWNERS also D / OWNERS rows of D. In shared memory it holds its
    columns of X for all sweeps, and two stages of D or its codes in two halves; in the read-out the ridge matrix and
    X^T D have their place. In registers are its codes and 1 / |x|. What the programs exchange in global memory, and
    who waits for whom: `cosine_wave_kernels`.

    x, y: b d n in bfloat16, any strides. initial, d: b d r in float32. c: b n r. m: b d r in float32, the transposed
    projector, which the gradient needs beside D (PROJECTOR). steps > 0: the bases are of unit length. Every program
    inverts the same R x R matrix: if one did it for all, the others would only wait.
    """
    W: gl.constexpr = num_warps
    BD: gl.constexpr = stage_rows(R)
    mma: gl.constexpr = product_layout(BN, R, W)
    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_d += i_b * d * r
    at = exchange_of(p_copy, p_shares, p_scratch, p_count, i_b, programs, D, R)
    o_n = i_p * BN + gl.arange(0, BN, gl.SliceLayout(1, mma))
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))
    m_n, m_r = (o_n < n)[:, None], (o_r < r)[None, :]

    begin_with(p_initial, s_initial, at, d, r, i_p, i_b, D, R, OWNERS, W)
    b_x = gl.allocate_shared_memory(gl.bfloat16, [D // BD, BD, BN], SWIZZLED)
    b_xx = load_columns(p_x + i_b * s_xb, b_x, d, n, s_xd, s_xn, i_p, D, BD, BD, BN, N_FAST, W)
    b_scale = gl.convert_layout(inverse_norms(b_xx) / temperature, gl.SliceLayout(1, mma))
    for step in range(steps):
        wait_for_bases(at, step, OWNERS)
        z = zero_of(step)
        b_codes = assign(of_this_sweep(at, z), b_x, b_scale, m_n, m_r, step > 0, z, D, R, BN, W)
        move_bases(
            b_codes, b_scale, b_x, of_this_sweep(at, z), p_d + z, d, r, step, steps, programs, z, i_p,
            D, R, BN, OWNERS, MOST, W,
        )  # fmt: skip

    wait_for_bases(at, steps, OWNERS)
    b_xd, b_gram, b_norm = project_fine(at.p_copy, at.p_squares, b_x, zero_of(steps), True, D, R, BN, W)
    if i_p < OWNERS:
        normalize_own(p_d, b_norm, d, r, i_p, D, R, OWNERS, W)
    b_ridge = ridge(b_gram, b_norm, beta, R, W)
    b_codes = times_ridge(b_xd, b_ridge, BN, R)
    o_c = (i_b * n + o_n)[:, None] * r + o_r[None, :]
    gl.store(p_c + o_c, b_codes.to(p_c.dtype.element_ty), mask=m_n & m_r)
    if PROJECTOR:
        write_projector(at.p_copy, p_m + i_b * d * r, b_ridge, d, r, programs, i_p, D, R, W)
    b_ridge._keep_alive()
    if Y:
        b_unit = gl.convert_layout(unit_scales(b_norm), gl.SliceLayout(0, mma))
        b_scaled = (b_codes * b_unit[None, :]).to(gl.bfloat16)
        p_y += i_b * s_yb
        write_streamed_product(b_scaled, at.p_copy, p_y, d, n, s_yd, s_yn, i_p, D, R, BN, N_FAST, W)
