"""Soft k-means by cosine in one launch, in Gluon: the parts of a step that VQ and CD share.

Letters: `hamburger.kernels.hopper.common`. A program holds BN columns of X in shared memory from the first step to the
read-out, as in NMF, and makes codes of them anew in each step. What a step is made of: `cosine_common` has D
and products with it, `cosine_sums` the exchange of sums.

The first OWNERS programs own an equal number of rows of D each. After a step they alone add up the partial sums and
write D; the others wait for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from hamburger.kernels.hopper.common import arrive, load_columns, ready, softmax, threads_meet, wait, zero_of
from hamburger.kernels.hopper.cosine_common import (
    inverse_norms,
    load_stage,
    project_fine,
    publish_initial_bases,
    stage_rows,
    unit_scales,
    unit_scales_again,
    write_streamed_product,
)
from hamburger.kernels.hopper.cosine_sums import update_centroids, write_fine_sums
from hamburger.kernels.hopper.layouts import SWIZZLED, product_layout, row_layout
from hamburger.kernels.hopper.ridge import ridge, rows_times_ridge, times_ridge

COUNTERS = gl.constexpr(32)  # from one image to the next: `launcher.COUNTERS_PER_IMAGE`
NEW_D = gl.constexpr(16)  # where the second counter lies: not in the sector of the first


class Exchange(NamedTuple):
    """Where the programs of one image find what they write for each other, in global memory."""

    p_copy: Any  # 2 D R, bfloat16: the two halves of D
    p_shares: Any  # programs D R, int16 or float32: of X C^T
    p_mass: Any  # programs R, float32: partial sums of C 1
    p_top: Any  # programs D, float32: the scales of a partial sum's rows, where it is of int16
    p_squares: Any  # D/4 R, float32: |d|^2 over four rows each
    p_count: Any  # int32: programs that have written their partial sums; NEW_D further on, reducers that have written D


@gluon.jit
def exchange_of(p_copy, p_shares, p_scratch, p_count, i_b, programs, D: gl.constexpr, R: gl.constexpr):
    """Of image i_b. scratch holds one after another what is of float32: mass, top, squares."""
    p_copy += i_b * (2 * D * R)
    p_shares += i_b * programs * (D * R)
    p_mass = p_scratch + i_b * (programs * (R + D) + D // 4 * R)
    p_top = p_mass + programs * R
    return Exchange(p_copy, p_shares, p_mass, p_top, p_top + programs * D, p_count + i_b * COUNTERS)


@gluon.jit
def of_this_step(at, z):
    """The same addresses, by a zero of this step: see `zero_of`."""
    return Exchange(
        at.p_copy + z, at.p_shares + z, at.p_mass + z, at.p_top + z, at.p_squares + z, at.p_count
    )  # fmt: skip


@gluon.jit
def wait_for_bases(at, step, OWNERS: gl.constexpr):
    """Until all rows of D are those of this step; the first D is step 0."""
    wait(at.p_count + NEW_D, OWNERS * (step + 1))


@gluon.jit
def begin_with(
    p_initial, s_initial, at, d, r, i_p, i_b,
    D: gl.constexpr, R: gl.constexpr, OWNERS: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """The first D, of step 0, from its reducers.   initial: b d r in float32"""
    if i_p < OWNERS:
        publish_initial_bases(p_initial + i_b * s_initial, at.p_copy, at.p_squares, d, r, i_p, D, R, OWNERS, W)
        arrive(at.p_count + NEW_D)


@gluon.jit
def assign(
    at, b_x, b_scale, m_n, m_r, centroids, z,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Codes: softmax over r of cosine(D, X) / T, zero beyond n and r.   scale: BN, 1 / (|x| T)   ->   BN R

    centroids: whether D is CD's, before it is brought to unit length: see `unit_scales_again`.
    """
    b_xd, _, b_norm = project_fine(at.p_copy, at.p_squares, b_x, z, False, D, R, BN, W)
    b_unit = unit_scales(b_norm)
    b_unit = gl.where(centroids, unit_scales_again(b_norm, b_unit), b_unit)
    b_unit = gl.convert_layout(b_unit, gl.SliceLayout(0, b_xd.type.layout))
    b_c = softmax(b_xd * b_unit[None, :] * b_scale[:, None], m_r)
    return gl.where(m_n & m_r, b_c, 0.0)


@gluon.jit
def move_bases(
    b_codes, b_scale, b_x, at, p_d, d, r, step, steps, programs, z, i_p,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Each basis to the mean of its columns. A reducer returns when its own rows are written, others sooner.

    Reducers wait for all partial sums, which are then theirs to read. No other program does: the partial sums of the
    next step can only be written behind `wait_for_bases`, when all reducers have read these.
    """
    write_fine_sums(b_codes, b_scale, b_x, at.p_shares, at.p_mass, at.p_top, z, i_p, D, R, BN, W)
    arrive(at.p_count)
    if i_p < OWNERS:
        wait(at.p_count, programs * (step + 1))
        update_centroids(
            at.p_shares, at.p_mass, at.p_top, p_d, at.p_copy, at.p_squares, d, r, programs, i_p, step == steps - 1,
            D, R, OWNERS, MOST, W,
        )  # fmt: skip
        arrive(at.p_count + NEW_D)


# -- VQ ----------------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["steps", "programs"])
def vq_resident_kernel(
    p_x, p_initial, p_d, p_copy, p_c, p_y, p_shares, p_scratch, p_count,
    d, n, r, steps, programs, temperature, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_initial,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr,
    N_FAST: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """K steps, the codes under the last D, and where Y the product D C. Grid: programs of an image, b.

    A program owns BN columns, and one of the first OWNERS also D / OWNERS rows of D. In shared memory it holds its
    columns of X for all steps, and two stages of D or its codes in two halves; in registers its codes and 1 / |x|.
    What the programs exchange in global memory, and who waits for whom: `cosine_resident`.

    x, y: b d n in bfloat16, any strides. initial, d: b d r in float32; d is not written where steps = 0. c: b n r.
    The gradient makes the codes again from X and D: nothing is kept for it.
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
    b_codes = gl.zeros([BN, R], gl.float32, mma)
    for step in range(steps + 1):
        wait_for_bases(at, step, OWNERS)
        z = zero_of(step)
        b_codes = assign(of_this_step(at, z), b_x, b_scale, m_n, m_r, False, z, D, R, BN, W)
        if step < steps:
            move_bases(
                b_codes, b_scale, b_x, of_this_step(at, z), p_d + z, d, r, step, steps, programs, z, i_p,
                D, R, BN, OWNERS, MOST, W,
            )  # fmt: skip
    o_c = (i_b * n + o_n)[:, None] * r + o_r[None, :]
    gl.store(p_c + o_c, b_codes.to(p_c.dtype.element_ty), mask=m_n & m_r)
    if Y:
        p_y += i_b * s_yb
        write_streamed_product(b_codes.to(gl.bfloat16), at.p_copy, p_y, d, n, s_yd, s_yn, i_p, D, R, BN, N_FAST, W)


# -- CD ----------------------------------------------------------------------------------------------------------------


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
    """A reducer brings its rows of the last D, which it wrote itself, to unit columns."""
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
def cd_resident_kernel(
    p_x, p_initial, p_d, p_copy, p_c, p_m, p_y, p_shares, p_scratch, p_count,
    d, n, r, steps, programs, temperature, beta, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_initial,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr,
    N_FAST: gl.constexpr, PROJECTOR: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """K steps, the ridge codes under the last D, and where Y the product D C. Grid: programs of an image, b.

    A program owns BN columns, and one of the first OWNERS also D / OWNERS rows of D. In shared memory it holds its
    columns of X for all steps, and two stages of D or its codes in two halves; in the read-out the ridge matrix and
    X^T D have their place. In registers are its codes and 1 / |x|. What the programs exchange in global memory, and
    who waits for whom: `cosine_resident`.

    x, y: b d n in bfloat16, any strides. initial, d: b d r in float32. c: b n r. m: b d r in float32, the transposed
    projector, which the gradient needs next to D (PROJECTOR). steps > 0: the bases are of unit length. Every program
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
        b_codes = assign(of_this_step(at, z), b_x, b_scale, m_n, m_r, step > 0, z, D, R, BN, W)
        move_bases(
            b_codes, b_scale, b_x, of_this_step(at, z), p_d + z, d, r, step, steps, programs, z, i_p,
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
