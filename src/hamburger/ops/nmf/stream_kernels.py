"""NMF where X does not fit the card, in Gluon for Hopper: all sweeps in one launch, each of them one pass over X.

Letters and pieces: `hamburger.ops.wave_kernels`.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.ops.layouts import SWIZZLED, product_layout
from hamburger.ops.nmf.wave_kernels import update_unit
from hamburger.ops.stream_kernels import load_bases_at_once, own_codes, strides_of_tile, tile_at, way_of
from hamburger.ops.wave_kernels import (
    arrive,
    block_offset,
    load_columns,
    load_columns_async,
    project,
    ready,
    seen_as,
    softmax,
    wait,
    write_product,
    zero_of,
)


@gluon.jit
def take_bases(
    p_d, b_d, b_g, d, r, s_d, z, D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, W: gl.constexpr
):  # fmt: skip
    """D and D^T D into shared memory, in bfloat16, zeros beyond d and r.   b_d: D/64 64 R   b_g: R R"""
    b_rows = load_bases_at_once(p_d, d, r, s_d, z, D, R, W)
    for i in gl.static_range(D // 64):
        b_d.index(i + z).store(b_rows[i].to(gl.bfloat16))
    ready()
    zero = gl.zeros([R, R], gl.float32, product_layout(BN, R, W))
    b_gram = zero
    for i in range(D // 64):  # a loop of the machine's: what is found for one unrolled would be kept for all sweeps
        b_gram = warpgroup_mma(b_d.index(i).permute([1, 0]), b_d.index(i), b_gram)
    b_g.store(b_gram.to(gl.bfloat16))


@gluon.jit
def store_share(p_own, b_sum, first, R: gl.constexpr, WIDE: gl.constexpr):
    """Rows of a program's share, in blocks, in bfloat16.   b_sum: rows R, the first of them number `first`"""
    layout: gl.constexpr = b_sum.type.layout
    o_d = first + gl.arange(0, b_sum.type.shape[0], gl.SliceLayout(1, layout))
    o_r = gl.arange(0, R, gl.SliceLayout(0, layout))
    gl.store(p_own + block_offset(o_d[:, None], o_r[None, :], R, WIDE), b_sum.to(gl.bfloat16))


@gluon.jit
def sweep(
    p_x, p_c, p_last, p_ratio, p_y, p_sums,
    b_tiles, b_d, b_old, b_new, b_g, d, n, r, i_p, i_b, programs, tiles, step, eps, s_xd, s_xn, s_yd, s_yn,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, WIDE: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, READOUT: gl.constexpr, RATIO: gl.constexpr, Y: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """New codes for all tiles of this program, and its share of what D needs of them; or (READOUT) the last codes.

    c, last: n r, the codes before and after (FIRST makes those before: softmax of D^T X). step: how many sweeps there
    were before. Where ASYNC tiles lie in the two b_tiles by turns, over all sweeps; the first one is on its way when a
    sweep begins, and that of the next sweep is there when it ends.
    """
    XD: gl.constexpr = 256 if D > 256 else D  # an operand of the matrix units has at most 256 rows
    mma: gl.constexpr = product_layout(BN, R, W)
    mma_d: gl.constexpr = product_layout(XD, R, W)
    zero_c = gl.zeros([BN, R], gl.float32, mma)
    begin, way = way_of(step, i_p, programs, tiles)
    if not FIRST:
        o_c, m_c = own_codes(begin, n, r + zero_of(i_p), BN, R, mma)
        b_codes = gl.load(p_c + o_c, mask=m_c, other=0.0)
    b_xc = gl.zeros([XD, R], gl.float32, mma_d)  # the first 256 rows of X C^T,
    b_more = b_xc  # and those after them
    b_cc = gl.zeros([R, R], gl.float32, mma)
    if ASYNC:
        async_copy.wait_group(0)
    ready()
    for k in range(tiles):
        i_t, i_next = begin + way * k, tile_at(k + 1, begin, way, tiles)
        z = zero_of(i_t)
        turns = step * tiles + k
        s_down, s_along = strides_of_tile(s_xd, s_xn, z, N_FAST)
        b_x = seen_as(b_tiles.index(turns % 2 if ASYNC else 0), gl.bfloat16, [D // XD, XD, BN], SWIZZLED)
        if not ASYNC:
            load_columns(p_x, b_x, d, n, s_down, s_along, i_t, D, 64, XD, BN, N_FAST, W)
            ready()
        b_xd = project(b_x, b_d, zero_c, z, D, XD)
        if ASYNC:
            load_columns_async(p_x, b_tiles.index((turns + 1) % 2), d, n, s_down, s_along, i_next, D, BN, W)
        o_c, m_c = own_codes(i_t, n, r + z, BN, R, mma)
        if FIRST:
            m_r = (gl.arange(0, R, gl.SliceLayout(0, mma)) < r)[None, :]
            b_xd = warpgroup_mma_wait(0, deps=[b_xd])
            b_codes = softmax(b_xd, m_r)
        # C * D^T X / (D^T D C + eps)
        b_old.store(b_codes.to(gl.bfloat16))
        ready()
        b_gc = warpgroup_mma(b_old, b_g, zero_c, use_acc=False, is_async=True)
        if FIRST:
            b_gc = warpgroup_mma_wait(0, deps=[b_gc])
        else:
            b_xd, b_gc = warpgroup_mma_wait(0, deps=[b_xd, b_gc])
        # the softmax of a column beyond n is not zero, and with eps = 0 the padding is 0 / 0
        b_ratio = gl.where(m_c, b_codes / (b_gc + eps), 0.0)
        b_codes = b_ratio * b_xd
        b_new.store(b_codes.to(gl.bfloat16))
        ready()
        if READOUT:
            gl.store(p_last + o_c, b_codes.to(p_last.dtype.element_ty), mask=m_c)
            if RATIO:
                gl.store(p_ratio + o_c, b_ratio.to(p_ratio.dtype.element_ty), mask=m_c)
            if Y:
                s_y_down, s_y_along = strides_of_tile(s_yd, s_yn, z, N_FAST)
                write_product(b_d, b_new, b_x, p_y, d, n, s_y_down, s_y_along, i_t, D, XD, BN, N_FAST, W)
        else:
            b_xc = warpgroup_mma(b_x.index(z), b_new, b_xc, is_async=True)
            if D > XD:
                b_more = warpgroup_mma(b_x.index(1 + z), b_new, b_more, is_async=True)
            b_cc = warpgroup_mma(b_new.permute([1, 0]), b_new, b_cc, is_async=True)
            gl.store(p_c + o_c, b_codes, mask=m_c)
        if not FIRST:  # those of the next tile, on their way during the sums
            o_c, m_c = own_codes(i_next, n, r + z, BN, R, mma)
            b_codes = gl.load(p_c + o_c, mask=m_c, other=0.0)
        if not READOUT:
            b_xc, b_more, b_cc = warpgroup_mma_wait(0, deps=[b_xc, b_more, b_cc])
        if ASYNC:
            async_copy.wait_group(0)
        ready()  # the next tile is here, and this one's place is free
    if not READOUT:
        z = zero_of(i_p)
        p_own = p_sums + (i_b * programs + i_p + z) * ((D + R) * R)
        store_share(p_own, b_xc, z, R, WIDE)
        if D > XD:
            store_share(p_own, b_more, z + XD, R, WIDE)
        store_share(p_own, b_cc, z + D, R, WIDE)


@gluon.jit(do_not_specialize=["first", "steps", "programs"])
def stream_kernel(
    p_x, p_initial, p_d, p_copy, p_c, p_last, p_ratio, p_y, p_sums, p_count,
    first, d, n, r, steps, programs, eps, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_count,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, COLS: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, READOUT: gl.constexpr, RATIO: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """All sweeps; or (READOUT) the last codes, and where Y the product D C. Grid: programs of an image, images from
    `first` on.

    A program owns every `programs`-th tile of BN columns, from the i_p-th on, and every programs-th unit of D. It has
    one tile at least, and every other sweep goes back through them. X C^T and C C^T of all its tiles stay in its
    registers in float32, and X is read once in a sweep. In shared memory, all in bfloat16: D and D^T D, the same for
    all tiles; a tile of X, and where ASYNC the next one, on its way while this one is worked on; the codes of a tile
    before and after. Twice in a sweep all programs of an image wait for each other, by two counters: before they read
    shares (`sums`), and before they read D (`copy`). Within a program `ready` stands between what threads write to
    shared memory and who reads it or writes there next.

    x, y: b d n in bfloat16, any strides. initial, d: b d r in float32, D before and after; copy: b D R in bfloat16, D
    for the next sweep. c: b n r in float32, the codes between sweeps; last: b n r, those of the read-out. ratio:
    C / (D^T D C + eps) before it. sums: b programs (D + R) R. count: two counters for each image, zero, s_count apart.
    FIRST: whether the read-out makes the codes before it. One kernel for both, with a read-out behind the sweeps, would
    have no registers for it.
    """
    W: gl.constexpr = num_warps
    WIDE: gl.constexpr = COLS if COLS < 8 else 8  # of a block of the sums
    b_tiles = gl.allocate_shared_memory(gl.bfloat16, [2 if ASYNC else 1, D, BN], SWIZZLED)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_old = gl.allocate_shared_memory(gl.bfloat16, [BN, R], SWIZZLED)
    b_new = gl.allocate_shared_memory(gl.bfloat16, [BN, R], SWIZZLED)
    b_g = gl.allocate_shared_memory(gl.bfloat16, [R, R], SWIZZLED)

    i_p, i_b = gl.program_id(0), first + gl.program_id(1).to(gl.int64)
    p_x += i_b * s_xb
    p_c += i_b * n * r
    tiles = gl.cdiv(gl.cdiv(n, BN) - i_p, programs)

    if ASYNC:
        load_columns_async(p_x, b_tiles.index(0), d, n, s_xd, s_xn, i_p, D, BN, W)
    take_bases(p_initial + i_b * d * r, b_d, b_g, d, r, r, 0, D, R, BN, W)
    if READOUT:
        sweep(
            p_x, p_c, p_last + i_b * n * r, p_ratio + i_b * n * r, p_y + i_b * s_yb, p_sums,
            b_tiles, b_d, b_old, b_new, b_g, d, n, r, i_p, i_b, programs, tiles, 0, eps, s_xd, s_xn, s_yd, s_yn,
            D, R, BN, WIDE, N_FAST, ASYNC, FIRST, True, RATIO, Y, W,
        )  # fmt: skip
    else:
        sweep(
            p_x, p_c, p_c, p_c, p_x, p_sums,
            b_tiles, b_d, b_old, b_new, b_g, d, n, r, i_p, i_b, programs, tiles, 0, eps, s_xd, s_xn, s_xd, s_xn,
            D, R, BN, WIDE, N_FAST, ASYNC, True, False, False, False, W,
        )  # fmt: skip
        for step in range(1, steps + 1):
            z = zero_of(step)  # what is found from it finds no registers to stay in between sweeps, and needs none
            i_bz = i_b + z
            p_own_count = p_count + i_bz * s_count
            arrive(p_own_count)
            wait(p_own_count, programs * step)
            # the units of D that are this program's
            p_new, p_new_copy = p_d + i_bz * d * r, p_copy + i_bz * (D * R)
            p_old = p_new
            if step == 1:
                p_old = p_initial + i_bz * d * r
            p_shares = p_sums + i_bz * programs * ((D + R) * R)
            b_cc = b_g.slice(0, COLS if COLS > 8 else 8, dim=0)  # D^T D is made anew before it is needed
            for i_u in range(i_p, D // 64 * (R // COLS), programs):
                i_d, i_r = i_u // (R // COLS), i_u % (R // COLS)
                update_unit(
                    p_old, p_new, p_new_copy, p_shares, b_d.index(i_d), b_cc, d, r, programs, i_d, i_r, eps,
                    D, R, COLS, W,
                )  # fmt: skip
            if step < steps:
                arrive(p_own_count + 1)
                wait(p_own_count + 1, programs * step)
                take_bases(p_new_copy, b_d, b_g, D, R, R, z, D, R, BN, W)
                sweep(
                    p_x, p_c, p_c, p_c, p_x, p_sums,
                    b_tiles, b_d, b_old, b_new, b_g, d, n, r, i_p, i_b, programs, tiles, step, eps,
                    s_xd, s_xn, s_xd, s_xn,
                    D, R, BN, WIDE, N_FAST, ASYNC, False, False, False, False, W,
                )  # fmt: skip
