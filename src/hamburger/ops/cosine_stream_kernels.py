"""A sweep of soft k-means by cosine in one pass over X, in Gluon for Hopper: VQ's and CD's.

Letters and pieces: `hamburger.ops.wave_kernels`. Why both D and C are taken in two halves:
`hamburger.ops.cosine_bases_kernels`.

A tile of X, BN columns, lies in shared memory in pieces of ROWS rows: x is D/ROWS ROWS BN everywhere here.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.ops.cosine_bases_kernels import inverse_norms, rest, split_bases, unit_scales, unit_scales_again
from hamburger.ops.layouts import SWIZZLED, product_layout, row_layout, tile_layout
from hamburger.ops.stream_kernels import own_codes, store_sums, strides_of_tile
from hamburger.ops.wave_kernels import (
    load_columns,
    load_columns_async,
    ready,
    softmax,
    store_rows,
    threads_meet,
    zero_of,
)

ROWS = gl.constexpr(128)  # of X that go together: its tile is copied, multiplied and freed in such pieces


@gluon.jit
def load_piece_async(p_x, b_x, d, n, s_xd, s_xn, i_t, i: gl.constexpr, BN: gl.constexpr, W: gl.constexpr):
    """Piece i of tile i_t of X, under way; zeros behind the last tile."""
    load_columns_async(p_x, b_x.index(i), d, n, s_xd, s_xn, i_t, ROWS, BN, W, i * ROWS)


@gluon.jit
def load_tile_async(
    p_x, b_x, d, n, s_xd, s_xn, i_t, PIECES: gl.constexpr, BN: gl.constexpr, W: gl.constexpr
):  # fmt: skip
    """All of tile i_t of X, under way, a piece after another."""
    for i in gl.static_range(PIECES):
        load_piece_async(p_x, b_x, d, n, s_xd, s_xn, i_t, i, BN, W)


@gluon.jit
def add_squares(b_xx, b_rows):
    """b_xx: 32 BN, which four parts of a piece of X are squared and added to.   b_rows: ROWS BN"""
    for i in gl.static_range(ROWS // 32):
        b_part = b_rows.slice(i * 32, 32, dim=0).load(b_xx.type.layout).to(gl.float32)
        b_xx += b_part * b_part
    return b_xx


@gluon.jit
def project_pieces(
    b_x, b_high, b_low, b_xx, zero, z,
    FIRST: gl.constexpr, ASYNC: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """X^T D with both halves of D, under way, a piece as soon as it is there; where FIRST also squares of X.

    high, low: D/64 64 R   xx: 32 BN, which squares are added to where X arrives in the background   ->   BN R,  xx
    """
    b_xd = zero
    for i in gl.static_range(PIECES):
        if ASYNC:
            async_copy.wait_group(PIECES - 1 - i)
            ready()
        b_rows = b_x.index(i + z)
        for j in gl.static_range(ROWS // 64):
            b_part = b_rows.slice(j * 64, 64, dim=0).permute([1, 0])
            at = i * (ROWS // 64) + j + z
            b_xd = warpgroup_mma(b_part, b_high.index(at), b_xd, use_acc=i + j > 0, is_async=True)
            b_xd = warpgroup_mma(b_part, b_low.index(at), b_xd, is_async=True)
        if FIRST and ASYNC:
            b_xx = add_squares(b_xx, b_rows)
    return b_xd, b_xx


@gluon.jit
def add_to_sums(b_sums, b_x, b_c, z, PIECES: gl.constexpr):
    """Each piece's X C^T, with both halves of C, added to its sums, under way.   c: 2 BN R   ->   PIECES of ROWS R"""
    under_way = ()
    for i in gl.static_range(PIECES):
        b_sum = warpgroup_mma(b_x.index(i + z), b_c.index(z), b_sums[i], is_async=True)
        b_sum = warpgroup_mma(b_x.index(i + z), b_c.index(1 + z), b_sum, is_async=True)
        under_way += (b_sum,)
    return under_way


@gluon.jit
def finish_sums(
    under_way, p_x, b_x, d, n, s_xd, s_xn, i_t, programs,
    ASYNC: gl.constexpr, PIECES: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Wait for what `add_to_sums` began.   ->   PIECES of ROWS R

    Where ASYNC each piece, now free, is filled with the same piece of this program's next tile.
    """
    b_sums = ()
    for i in gl.static_range(PIECES):
        b_sums += (warpgroup_mma_wait(2 * (PIECES - 1 - i), deps=[under_way[i]]),)
        if ASYNC:
            threads_meet()
            load_piece_async(p_x, b_x, d, n, s_xd, s_xn, i_t + programs, i, BN, W)
    return b_sums


@gluon.jit
def write_staged_product(
    b_d, b_c, b_stage, p_y, d, n, s_yd, s_yn, i_t,
    D: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Y = D C, by way of shared memory, so that whole lines are written.   d: D/64 64 R   c: BN R   stage: 2 64 BN"""
    ld_y: gl.constexpr = tile_layout(64, BN, N_FAST, W)
    zero = gl.zeros([64, BN], gl.float32, product_layout(64, BN, W))
    o_n = i_t * BN + gl.arange(0, BN, gl.SliceLayout(0, ld_y)).to(gl.int64)
    for i in gl.static_range(D // 64):
        b_rows = warpgroup_mma(b_d.index(i), b_c.permute([1, 0]), zero, use_acc=False)
        b_stage.index(i % 2).store(b_rows.to(b_stage.dtype))
        threads_meet()
        store_rows(b_stage.index(i % 2), p_y, o_n, i * 64, d, n, s_yd, s_yn, 64, ld_y)


@gluon.jit(do_not_specialize=["programs"])
def cosine_stream_kernel(
    p_x, p_d, p_scale, p_c, p_y, p_sums,
    d, n, r, programs, temperature, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, CENTROIDS: gl.constexpr, READOUT: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """What D needs of a sweep, or (READOUT) the last codes and where Y the product D C. Grid: programs of an image, b.

    A program owns every `programs`-th tile of BN columns, from the i_p-th on. X C^T and C 1 of all of them stay in its
    registers in float32: X is read once, and no code is written but the last. Both halves of D and one tile of X fill
    the shared memory, with the codes of that tile. Where ASYNC a piece of the next tile is on its way as soon as the
    sums have taken the same piece of this one. Programs do not wait for each other; within one, `ready` and
    `threads_meet` stand between what threads write to shared memory and who reads it or writes there next.

    x, y: b d n in bfloat16, any strides. d: b d r in float32. scale: b n, 1 / |x|, which FIRST makes. c: b n r, written
    where READOUT. sums: b programs (d + 1) r in float32, the share of each program, X C^T above C 1, written where not.
    CENTROIDS: whether D is CD's, before it is brought to unit length: see `unit_scales_again`.
    """
    W: gl.constexpr = num_warps
    PIECES: gl.constexpr = D // ROWS
    mma: gl.constexpr = product_layout(BN, R, W)
    mma_d: gl.constexpr = product_layout(ROWS, R, W)
    b_x = gl.allocate_shared_memory(gl.bfloat16, [PIECES, ROWS, BN], SWIZZLED)
    b_high = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_low = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_c = gl.allocate_shared_memory(gl.bfloat16, [1 if READOUT else 2, BN, R], SWIZZLED)

    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_x += i_b * s_xb
    p_scale += i_b * n
    p_c += i_b * n * r
    p_y += i_b * s_yb
    p_own = p_sums + (i_b * programs + i_p) * ((d + 1) * r)
    zero_c = gl.zeros([BN, R], gl.float32, mma)

    if ASYNC:
        load_tile_async(p_x, b_x, d, n, s_xd, s_xn, i_p, PIECES, BN, W)
    b_norm = gl.sqrt(split_bases(p_d + i_b * d * r, b_high, b_low, d, r, D, R, W))
    b_unit = unit_scales(b_norm)
    if CENTROIDS:
        b_unit = unit_scales_again(b_norm, b_unit)
    b_unit = gl.convert_layout(b_unit, gl.SliceLayout(0, mma))

    b_mass = zero_c
    b_sums = ()
    for _ in gl.static_range(PIECES):
        b_sums += (gl.zeros([ROWS, R], gl.float32, mma_d),)
    for i_t in range(i_p, gl.cdiv(n, BN), programs):
        z = zero_of(i_t)
        s_down, s_along = strides_of_tile(s_xd, s_xn, z, N_FAST)
        o_n = i_t * BN + gl.arange(0, BN, gl.SliceLayout(1, mma)).to(gl.int64)
        # X^T D, and 1 / |x|
        if not FIRST:
            # BN
            b_scale = gl.load(p_scale + o_n, mask=o_n < n, other=0.0)
        if ASYNC:
            b_xx = gl.zeros([32, BN], gl.float32, row_layout(BN, 8, W))
        else:
            b_xx = load_columns(p_x, b_x, d, n, s_down, s_along, i_t, D, 64, ROWS, BN, N_FAST, W)
            ready()
        b_xd, b_xx = project_pieces(b_x, b_high, b_low, b_xx, zero_c, z, FIRST, ASYNC, PIECES)
        if FIRST:
            if ASYNC:
                b_xx = gl.sum(b_xx, axis=0)
            b_scale = gl.convert_layout(inverse_norms(b_xx), gl.SliceLayout(1, mma))
            gl.store(p_scale + o_n, b_scale, mask=o_n < n)
        # the codes
        o_c, m_c = own_codes(i_t, n, r + z, BN, R, mma)
        m_r = (gl.arange(0, R, gl.SliceLayout(0, mma)) < r)[None, :]
        b_xd = warpgroup_mma_wait(0, deps=[b_xd])
        if READOUT and ASYNC:  # there are no sums, and X is done with
            threads_meet()
            load_tile_async(p_x, b_x, d, n, s_down, s_along, i_t + programs, PIECES, BN, W)
        b_codes = softmax(b_xd * b_unit[None, :] * (b_scale / temperature)[:, None], m_r)
        b_codes = gl.where(m_c, b_codes, 0.0)  # a column beyond n has some
        b_first = b_codes.to(gl.bfloat16)
        b_c.index(z).store(b_first)
        if READOUT:
            gl.store(p_c + o_c, b_codes.to(p_c.dtype.element_ty), mask=m_c)
            if Y:
                b_stage = gl.allocate_shared_memory(gl.bfloat16, [2, 64, BN], SWIZZLED)
                ready()
                s_y_down, s_y_along = strides_of_tile(s_yd, s_yn, z, N_FAST)
                write_staged_product(
                    b_high, b_c.index(0), b_stage, p_y, d, n, s_y_down, s_y_along, i_t, D, BN, N_FAST, W
                )  # fmt: skip
        else:
            b_c.index(1 + z).store(rest(b_codes, b_first))
            ready()
            b_mass += b_codes
            under_way = add_to_sums(b_sums, b_x, b_c, z, PIECES)
            b_sums = finish_sums(
                under_way, p_x, b_x, d, n, s_down, s_along, i_t, programs, ASYNC, PIECES, BN, W
            )  # fmt: skip
        threads_meet()  # the place of X and of C is free
    if ASYNC:
        async_copy.wait_group(0)  # the zeros, before anything else is put in their place
        threads_meet()
    if not READOUT:
        for i in gl.static_range(PIECES):
            store_sums(p_own, b_sums[i], i * ROWS, d, r)
        o_r = gl.arange(0, R, gl.SliceLayout(0, mma))
        gl.store(p_own + d * r + o_r, gl.sum(b_mass, axis=0), mask=o_r < r)
