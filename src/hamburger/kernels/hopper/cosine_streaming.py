"""Streaming soft k-means by cosine, in Gluon for Hopper: all steps of VQ or CD in one launch, one pass over X per step.

Names, and what orders programs and threads: `hamburger.kernels.hopper.common`.

At a temperature of 0.01 the ninth bit of a cosine decides the cluster, so bfloat16 is not precise enough for D and C.
Both are multiplied in halves: a float32 as a bfloat16 (high) plus the remainder, also in bfloat16 (low).
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger import linalg
from hamburger.kernels.hopper.common import (
    ROWS,
    SWIZZLED,
    arrive,
    column_range,
    load_bases_at_once,
    load_columns,
    load_partial_sums,
    load_piece_async,
    load_tile_async,
    own_codes,
    partial_sum_layout,
    product_layout,
    ready,
    row_layout,
    softmax,
    store_rows,
    store_sums,
    strides_of_tile,
    threads_meet,
    tile_at,
    tile_layout,
    wait,
    zero_of,
)

EPS = gl.constexpr(linalg.EPS)
TINY = gl.constexpr(1.1754943508222875e-38)  # the least normal float32


@gluon.jit
def rest(b_value, b_high):
    """The second half of a float32: what its first, of bfloat16, leaves of it, in bfloat16 as well."""
    return (b_value - b_high.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def inverse_norms(b_xx):
    """1 / |x|, 0 for a zero column, which has no direction.   b_xx: |x|^2"""
    m_zero = b_xx < TINY
    return gl.where(m_zero, 0.0, gl.rsqrt(gl.where(m_zero, 1.0, b_xx)))


@gluon.jit
def unit_scales(b_norm):
    """What brings bases to unit length.   b_norm: |d|"""
    return 1.0 / gl.maximum(b_norm, EPS)


@gluon.jit
def unit_scales_again(b_norm, b_unit):
    """CD's bases are centroids of unit length, but only the last are stored so. This scales for both, one after the
    other, which differs from once where a centroid is all but zero.   b_unit: `unit_scales` of b_norm"""
    return b_unit / gl.maximum(b_norm * b_unit, EPS)


@gluon.jit
def split_bases(p_d, b_high, b_low, d, r, z, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """All of D into shared memory in halves; |d|^2 of each basis.   d: d r, float32   high, low: D/64 64 R   ->   R"""
    b_rows = load_bases_at_once(p_d, d, r, r, z, D, R, W)
    b_dd = b_rows[0] * b_rows[0]
    for i in gl.static_range(D // 64):
        b_first = b_rows[i].to(gl.bfloat16)
        b_high.index(i + z).store(b_first)
        b_low.index(i + z).store(rest(b_rows[i], b_first))
        if i > 0:
            b_dd += b_rows[i] * b_rows[i]
    return gl.sum(b_dd, axis=0)


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
    under_way, p_x, b_x, d, n, s_xd, s_xn, i_next,
    ASYNC: gl.constexpr, PIECES: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Wait for what `add_to_sums` began.   ->   PIECES of ROWS R

    Where ASYNC each piece, now free, is filled with the same piece of tile i_next.
    """
    b_sums = ()
    for i in gl.static_range(PIECES):
        b_sums += (warpgroup_mma_wait(2 * (PIECES - 1 - i), deps=[under_way[i]]),)
        if ASYNC:
            threads_meet()
            load_piece_async(p_x, b_x, d, n, s_xd, s_xn, i_next, i, BN, W)
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


@gluon.jit
def take_bases(
    p_d, b_high, b_low, d, r, z,
    CENTROIDS: gl.constexpr, D: gl.constexpr, R: gl.constexpr, mma: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """D into shared memory, in halves.   d: d r in float32   high, low: D/64 64 R   ->   R, what makes a basis a unit

    CENTROIDS: whether D is CD's, before it is brought to unit length: see `unit_scales_again`.
    """
    b_norm = gl.sqrt(split_bases(p_d, b_high, b_low, d, r, z, D, R, W))
    b_unit = unit_scales(b_norm)
    if CENTROIDS:
        b_unit = unit_scales_again(b_norm, b_unit)
    return gl.convert_layout(b_unit, gl.SliceLayout(0, mma))


@gluon.jit
def run_step(
    p_x, p_scale, p_c, p_y, p_sums, b_x, b_high, b_low, b_c, b_unit,
    d, n, r, i_p, i_b, programs, tiles, step, temperature, s_xd, s_xn, s_yd, s_yn,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, READOUT: gl.constexpr, Y: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """This program's partial sum of what D needs of its tiles; or (READOUT) their codes and where Y the product D C.

    step: how many steps there were before. Where ASYNC the first tile is on its way when it begins, and that of
    the next step when it ends.   scale: n, which FIRST makes
    """
    PIECES: gl.constexpr = D // ROWS
    mma: gl.constexpr = product_layout(BN, R, W)
    mma_d: gl.constexpr = product_layout(ROWS, R, W)
    zero_c = gl.zeros([BN, R], gl.float32, mma)
    b_mass = zero_c
    b_sums = ()
    for _ in gl.static_range(PIECES):
        b_sums += (gl.zeros([ROWS, R], gl.float32, mma_d),)
    begin, way = column_range(step, i_p, programs, tiles)
    for k in range(tiles):
        i_t, i_next = begin + way * k, tile_at(k + 1, begin, way, tiles)
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
            load_tile_async(p_x, b_x, d, n, s_down, s_along, i_next, PIECES, BN, W)
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
                under_way, p_x, b_x, d, n, s_down, s_along, i_next, ASYNC, PIECES, BN, W
            )  # fmt: skip
        threads_meet()  # the place of X and of C is free
    if not READOUT:
        z = zero_of(i_p)
        p_own = p_sums + (i_b * programs + i_p + z) * ((D + 1) * R)
        for i in gl.static_range(PIECES):
            store_sums(p_own, b_sums[i], z + i * ROWS, D, R)
        gl.store(p_own + D * R + gl.arange(0, R, gl.SliceLayout(0, mma)), gl.sum(b_mass, axis=0))


@gluon.jit
def update_rows(p_sums, p_d, d, r, programs, i_u, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """D = X C^T diag(C 1)^-1 in four of its rows, the i_u-th four: the partial sums of all programs added up in their
    order.

    sums: programs (D + 1) R, X C^T above C 1   d: d r, in float32
    """
    AT_ONCE: gl.constexpr = 128
    of_xc: gl.constexpr = partial_sum_layout(4 * R, W)
    of_mass: gl.constexpr = partial_sum_layout(R, W)
    rows: gl.constexpr = gl.BlockedLayout([1, R // 64], [1, 32], [4, W // 4], [1, 0])
    o_xc = i_u * (4 * R) + gl.arange(0, 4 * R, gl.SliceLayout(0, of_xc))
    o_mass = D * R + gl.arange(0, R, gl.SliceLayout(0, of_mass))
    b_xc = gl.zeros([4 * R], gl.float32, gl.SliceLayout(0, of_xc))
    b_mass = gl.zeros([R], gl.float32, gl.SliceLayout(0, of_mass))
    for i in range(0, programs, AT_ONCE):
        b_xc += gl.sum(load_partial_sums(p_sums, i, programs, (D + 1) * R, o_xc, AT_ONCE, of_xc), axis=0)
        b_mass += gl.sum(load_partial_sums(p_sums, i, programs, (D + 1) * R, o_mass, AT_ONCE, of_mass), axis=0)
    b_mass = gl.convert_layout(b_mass, gl.SliceLayout(0, rows))
    b_new = gl.convert_layout(b_xc.reshape([4, R]), rows) / (b_mass + EPS)[None, :]
    o_d = i_u * 4 + gl.arange(0, 4, gl.SliceLayout(1, rows))
    o_r = gl.arange(0, R, gl.SliceLayout(0, rows))
    gl.store(p_d + o_d[:, None] * r + o_r[None, :], b_new, mask=(o_d < d)[:, None] & (o_r < r)[None, :])


@gluon.jit(do_not_specialize=["first", "steps", "programs"])
def cosine_streaming_kernel(
    p_x, p_initial, p_d, p_scale, p_c, p_y, p_sums, p_count,
    first, d, n, r, steps, programs, temperature, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_count,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, CENTROIDS: gl.constexpr, READOUT: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """All steps; or (READOUT) the last codes, and where Y the product D C. Grid: programs of an image, images from
    `first` on.

    A program owns every `programs`-th tile of BN columns, from the i_p-th on, and every programs-th four rows of D.
    It has one tile at least, and every other step goes back through them. X C^T and C 1 of all its tiles stay in its
    registers in float32: X is read once in a step, and no code is written but the last. Both halves of D and one tile
    of X fill the shared memory, with the codes of that tile. Where ASYNC a piece of the next tile is on its way as soon
    as the sums have taken the same piece of this one. Twice in a step all
    programs of an image wait for each other, by two counters: before they read partial sums (`sums`), and before they
    read D. Within a program `ready` and `threads_meet` stand between what threads write to shared memory and who reads
    it or writes there next.

    x, y: b d n in bfloat16, any strides. initial, d: b d r in float32, D before and after. scale: b n, 1 / |x|. c:
    b n r. sums: b programs (D + 1) R in float32, the partial sum of each program, X C^T above C 1. count: two counters
    for each image, zero, s_count apart. FIRST: whether the read-out makes the scale. CENTROIDS: see `take_bases`, of
    all D but the first. One kernel for both, with a read-out behind the steps, would have no registers for it.
    """
    W: gl.constexpr = num_warps
    PIECES: gl.constexpr = D // ROWS
    mma: gl.constexpr = product_layout(BN, R, W)
    b_x = gl.allocate_shared_memory(gl.bfloat16, [PIECES, ROWS, BN], SWIZZLED)
    b_high = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_low = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_c = gl.allocate_shared_memory(gl.bfloat16, [1 if READOUT else 2, BN, R], SWIZZLED)

    i_p, i_b = gl.program_id(0), first + gl.program_id(1).to(gl.int64)
    p_x += i_b * s_xb
    p_scale += i_b * n
    tiles = gl.cdiv(gl.cdiv(n, BN) - i_p, programs)

    if ASYNC:
        load_tile_async(p_x, b_x, d, n, s_xd, s_xn, i_p, PIECES, BN, W)
    b_unit = take_bases(p_initial + i_b * d * r, b_high, b_low, d, r, 0, False, D, R, mma, W)
    if READOUT:
        run_step(
            p_x, p_scale, p_c + i_b * n * r, p_y + i_b * s_yb, p_sums, b_x, b_high, b_low, b_c, b_unit,
            d, n, r, i_p, i_b, programs, tiles, 0, temperature, s_xd, s_xn, s_yd, s_yn,
            D, R, BN, N_FAST, ASYNC, FIRST, True, Y, W,
        )  # fmt: skip
    else:
        run_step(
            p_x, p_scale, p_x, p_x, p_sums, b_x, b_high, b_low, b_c, b_unit,
            d, n, r, i_p, i_b, programs, tiles, 0, temperature, s_xd, s_xn, s_xd, s_xn,
            D, R, BN, N_FAST, ASYNC, True, False, False, W,
        )  # fmt: skip
        for step in range(1, steps + 1):
            z = zero_of(step)  # what is found from it finds no registers to stay in between steps, and needs none
            i_bz = i_b + z
            p_own_count = p_count + i_bz * s_count
            arrive(p_own_count)
            wait(p_own_count, programs * step)
            p_new = p_d + i_bz * d * r
            p_shares = p_sums + i_bz * programs * ((D + 1) * R)
            for i_u in range(i_p, gl.cdiv(d, 4), programs):
                update_rows(p_shares, p_new, d, r, programs, i_u, D, R, W)
            if step < steps:
                arrive(p_own_count + 1)
                wait(p_own_count + 1, programs * step)
                b_unit = take_bases(p_new, b_high, b_low, d, r, z, CENTROIDS, D, R, mma, W)
                run_step(
                    p_x, p_scale, p_x, p_x, p_sums, b_x, b_high, b_low, b_c, b_unit,
                    d, n, r, i_p, i_b, programs, tiles, step, temperature, s_xd, s_xn, s_xd, s_xn,
                    D, R, BN, N_FAST, ASYNC, False, False, False, W,
                )  # fmt: skip
    if ASYNC:
        async_copy.wait_group(0)  # one more tile, which is not used
