"""Streaming NMF in Gluon for Hopper: all steps in one launch, one pass over X per step. Names: `hopper.common`."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.kernels.hopper.common import (
    ROWS,
    SWIZZLED,
    arrive,
    block_offset,
    column_range,
    fence_shared,
    load_bases_at_once,
    load_columns,
    load_piece_async,
    load_tile_async,
    own_codes,
    product_layout,
    reinterpret,
    softmax,
    strides_of_tile,
    thread_barrier,
    tile_at,
    wait,
    write_product,
    zero_of,
)
from hamburger.kernels.hopper.nmf_resident import ratio_of, update_unit


@gluon.jit
def take_bases(
    p_d, b_d, b_g, d, r, s_d, z, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr
):  # fmt: skip
    """Load D and compute D^T D, in shared memory in bfloat16, zeros beyond d and r.   b_d: D/64 64 R   b_g: R R"""
    b_rows = load_bases_at_once(p_d, d, r, s_d, z, D, R, W)
    for i in gl.static_range(D // 64):
        b_d.index(i + z).store(b_rows[i].to(gl.bfloat16))
    fence_shared()
    b_gram = gl.zeros([R, R], gl.float32, product_layout(R, R, W))
    for i in range(D // 64):  # not unrolled: else the addresses would be kept in registers for all steps
        b_gram = warpgroup_mma(b_d.index(i).permute([1, 0]), b_d.index(i), b_gram)
    b_g.store(b_gram.to(gl.bfloat16))
    fence_shared()


@gluon.jit
def store_partial_sum(p_own, b_sum, first, R: gl.constexpr, WIDE: gl.constexpr):
    """Write rows of a partial sum in blocks, in bfloat16, from row `first` on.   b_sum: rows R"""
    layout: gl.constexpr = b_sum.type.layout
    o_d = first + gl.arange(0, b_sum.type.shape[0], gl.SliceLayout(1, layout))
    o_r = gl.arange(0, R, gl.SliceLayout(0, layout))
    gl.store(p_own + block_offset(o_d[:, None], o_r[None, :], R, WIDE), b_sum.to(gl.bfloat16))


@gluon.jit
def buffer_of(b_tiles, count, D: gl.constexpr, BN: gl.constexpr, PLACES: gl.constexpr):
    """The buffer of a program's tile after `count` others: buffers are used in turn.   ->   D/ROWS ROWS BN"""
    return reinterpret(b_tiles.index(count % PLACES), gl.bfloat16, [D // ROWS, ROWS, BN], SWIZZLED)


@gluon.jit
def project_pieces(
    b_x, b_d, zero, z, ASYNC: gl.constexpr, PIECES: gl.constexpr, PLACES: gl.constexpr
):  # fmt: skip
    """Issue X^T D, piece by piece as X arrives.   d: D/64 64 R   ->   BN R, in flight

    PLACES: tiles whose copies are in flight, this one first
    """
    b_xd = zero
    for i in gl.static_range(PIECES):
        if ASYNC:
            async_copy.wait_group(PLACES * PIECES - 1 - i)
        if ASYNC or i == 0:
            fence_shared()
        for j in gl.static_range(ROWS // 64):
            b_part = b_x.index(i + z).slice(j * 64, 64, dim=0).permute([1, 0])
            b_basis = b_d.index(i * (ROWS // 64) + j + z)
            b_xd = warpgroup_mma(b_part, b_basis, b_xd, use_acc=i + j > 0, is_async=True)
    return b_xd


@gluon.jit
def add_to_sums(b_xc, b_cc, b_x, b_c, z, PIECES: gl.constexpr):
    """Issue X C^T, each piece of X for its own rows, and C C^T.   ->   PIECES of ROWS R,  R R, in flight"""
    in_flight = ()
    for i in gl.static_range(PIECES):
        in_flight += (warpgroup_mma(b_x.index(i + z), b_c, b_xc[i], is_async=True),)
    return in_flight, warpgroup_mma(b_c.permute([1, 0]), b_c, b_cc, is_async=True)


@gluon.jit
def finish_sums(
    in_flight, b_cc, p_x, b_x, d, width, s_xd, s_xn, i_coming,
    ASYNC: gl.constexpr, PIECES: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Wait for the products of `add_to_sums`.   ->   PIECES of ROWS R,  R R

    With ASYNC, each piece that is free is refilled with the same piece of tile i_coming.
    """
    b_xc = ()
    for i in gl.static_range(PIECES):
        b_xc += (warpgroup_mma_wait(PIECES - i, deps=[in_flight[i]]),)
        if ASYNC:
            thread_barrier()
            load_piece_async(p_x, b_x, d, width, s_xd, s_xn, i_coming, i, BN, W)
    return b_xc, warpgroup_mma_wait(0, deps=[b_cc])


@gluon.jit
def run_step(
    p_x, p_c, p_last, p_ratio, p_y, p_sums,
    b_tiles, b_d, b_codes_place, b_gram_place, d, n, width, r, i_p, i_b, programs, tiles, step, eps,
    s_xd, s_xn, s_yd, s_yn,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, PLACES: gl.constexpr, WIDE: gl.constexpr,
    N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, READOUT: gl.constexpr, RATIO: gl.constexpr, Y: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Update the codes of all tiles of this program and write its partial sums; with READOUT write the last codes.

    c, last: n r, the codes before and after (FIRST computes those before: softmax of D^T X). step: number of earlier
    steps. Tiles use the PLACES buffers of b_tiles in turn, over all steps. With ASYNC, copies of the first PLACES tiles
    are in flight when it begins, and those of the next step when it ends.
    """
    PIECES: gl.constexpr = D // ROWS
    mma: gl.constexpr = product_layout(BN, R, W)
    zero_c = gl.zeros([BN, R], gl.float32, mma)
    begin, way = column_range(step, i_p, programs, tiles)
    if not FIRST:
        o_c, m_c = own_codes(begin, n, r + zero_of(i_p), BN, R, mma)
        b_codes = gl.load(p_c + o_c, mask=m_c, other=0.0).to(gl.float32)
    b_xc = ()  # X C^T, in pieces of its rows
    for _ in gl.static_range(PIECES):
        b_xc += (gl.zeros([ROWS, R], gl.float32, product_layout(ROWS, R, W)),)
    b_cc = gl.zeros([R, R], gl.float32, product_layout(R, R, W))
    for k in range(tiles):
        i_t = begin + way * k
        z = zero_of(i_t)
        s_down, s_along = strides_of_tile(s_xd, s_xn, z, N_FAST)
        i_next, i_coming = tile_at(k + 1, begin, way, tiles), tile_at(k + PLACES, begin, way, tiles)
        if READOUT and k + PLACES >= tiles:
            i_coming = gl.cdiv(n, BN)  # there is no next step; beyond n nothing is read
        b_x = buffer_of(b_tiles, step * tiles + k, D, BN, PLACES)
        b_c, b_g = b_codes_place.index(z), b_gram_place.index(z)
        o_c, m_c = own_codes(i_t, n, r + z, BN, R, mma)  # the softmax of a column beyond n is not zero
        # C * D^T X / (D^T D C + eps); the part without X while X is still being copied
        if not FIRST:
            b_ratio = ratio_of(b_codes, b_g, m_c, zero_c, eps)
        if not ASYNC:
            load_columns(p_x, b_x, d, width, s_down, s_along, i_t, D, 64, ROWS, BN, N_FAST, W)
        b_xd = warpgroup_mma_wait(0, deps=[project_pieces(b_x, b_d, zero_c, z, ASYNC, PIECES, PLACES)])
        if FIRST:
            m_r = (gl.arange(0, R, gl.SliceLayout(0, mma)) < r)[None, :]
            b_ratio = ratio_of(softmax(b_xd, m_r), b_g, m_c, zero_c, eps)
        b_codes = b_ratio * b_xd
        b_c.store(b_codes.to(gl.bfloat16))
        fence_shared()
        if READOUT:
            gl.store(p_last + o_c, b_codes.to(p_last.dtype.element_ty), mask=m_c)
            if RATIO:
                gl.store(p_ratio + o_c, b_ratio.to(p_ratio.dtype.element_ty), mask=m_c)
            if Y:
                s_y_down, s_y_along = strides_of_tile(s_yd, s_yn, z, N_FAST)
                write_product(b_d, b_c, b_x, p_y, d, n, s_y_down, s_y_along, i_t, D, ROWS, BN, N_FAST, W)
        else:
            in_flight, b_cc = add_to_sums(b_xc, b_cc, b_x, b_c, z, PIECES)
            gl.store(p_c + o_c, b_codes.to(p_c.dtype.element_ty), mask=m_c)
        if not FIRST:  # those of the next tile, loaded during the sums
            o_c, m_c = own_codes(i_next, n, r + z, BN, R, mma)
            b_codes = gl.load(p_c + o_c, mask=m_c, other=0.0).to(gl.float32)
        if not READOUT:
            b_xc, b_cc = finish_sums(
                in_flight, b_cc, p_x, b_x, d, width, s_down, s_along, i_coming, ASYNC, PIECES, BN, W
            )  # fmt: skip
        if READOUT or not ASYNC:
            thread_barrier()  # the buffer of X is free
        if READOUT and ASYNC:
            load_tile_async(p_x, b_x, d, width, s_down, s_along, i_coming, PIECES, BN, W)
    if not READOUT:
        z = zero_of(i_p)
        p_own = p_sums + (i_b * programs + i_p + z) * ((D + R) * R)
        for i in gl.static_range(PIECES):
            store_partial_sum(p_own, b_xc[i], z + i * ROWS, R, WIDE)
        store_partial_sum(p_own, b_cc, z + D, R, WIDE)


@gluon.jit(do_not_specialize=["first", "steps", "programs"])
def nmf_streaming_kernel(
    p_x, p_initial, p_d, p_copy, p_c, p_last, p_ratio, p_y, p_sums, p_count,
    first, d, n, width, r, steps, programs, eps, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_count,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, PLACES: gl.constexpr, COLS: gl.constexpr,
    N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, READOUT: gl.constexpr, RATIO: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """All steps; with READOUT the last codes instead, and with Y also D C. Grid: programs, images from `first`.

    A program owns every `programs`-th tile of BN columns and every `programs`-th unit of D; it has at least one tile.
    It keeps X C^T and C C^T of all its tiles in registers in float32, so X is read once per step. Shared memory, all in
    bfloat16: D and D^T D, PLACES tiles of X, the new codes of a tile. With ASYNC, as soon as the sums have used a piece
    of a tile, it is refilled from the tile that is PLACES ahead. A step has two grid barriers per image: before
    programs read partial sums (`sums`), and before they read D (`copy`).

    x, y: b d n in bfloat16, any strides; x is read up to width, where it is zero from n on. initial, d: b d r in
    float32, D before and after; copy: b D R in bfloat16, D for the next step. c: b n r, the codes between steps; last:
    b n r, those of the read-out, which may be c. ratio: C / (D^T D C + eps) before it. sums: b programs (D + R) R.
    count: two counters per image, zero, s_count apart. FIRST: the read-out computes the codes before it. Steps and
    read-out are two launches: one kernel for both spills.
    """
    W: gl.constexpr = num_warps
    WIDE: gl.constexpr = COLS if COLS < 8 else 8  # columns of a block of the sums
    b_tiles = gl.allocate_shared_memory(gl.bfloat16, [PLACES, D, BN], SWIZZLED)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    # arrays of one, indexed anew in each step: else their addresses would be kept in registers and spilled
    b_codes_place = gl.allocate_shared_memory(gl.bfloat16, [1, BN, R], SWIZZLED)
    b_gram_place = gl.allocate_shared_memory(gl.bfloat16, [1, R, R], SWIZZLED)

    i_p, i_b = gl.program_id(0), first + gl.program_id(1).to(gl.int64)
    p_x += i_b * s_xb
    p_c += i_b * n * r
    tiles = gl.cdiv(gl.cdiv(n, BN) - i_p, programs)

    before = steps if READOUT else 0  # earlier steps
    begin, way = column_range(before, i_p, programs, tiles)
    if ASYNC:
        for k in gl.static_range(PLACES):
            b_x = buffer_of(b_tiles, before * tiles + k, D, BN, PLACES)
            load_tile_async(p_x, b_x, d, width, s_xd, s_xn, tile_at(k, begin, way, tiles), D // ROWS, BN, W)
    take_bases(p_initial + i_b * d * r, b_d, b_gram_place.index(0), d, r, r, 0, D, R, W)
    if READOUT:
        run_step(
            p_x, p_c, p_last + i_b * n * r, p_ratio + i_b * n * r, p_y + i_b * s_yb, p_sums,
            b_tiles, b_d, b_codes_place, b_gram_place, d, n, width, r, i_p, i_b, programs, tiles, before, eps,
            s_xd, s_xn, s_yd, s_yn,
            D, R, BN, PLACES, WIDE, N_FAST, ASYNC, FIRST, True, RATIO, Y, W,
        )  # fmt: skip
    else:
        run_step(
            p_x, p_c, p_c, p_c, p_x, p_sums,
            b_tiles, b_d, b_codes_place, b_gram_place, d, n, width, r, i_p, i_b, programs, tiles, 0, eps,
            s_xd, s_xn, s_xd, s_xn,
            D, R, BN, PLACES, WIDE, N_FAST, ASYNC, True, False, False, False, W,
        )  # fmt: skip
        for step in range(1, steps + 1):
            z = zero_of(step)  # else addresses would be kept in registers between steps
            i_bz = i_b + z
            p_own_count = p_count + i_bz * s_count
            arrive(p_own_count)
            wait(p_own_count, programs * step)
            # this program's units of D
            p_new, p_new_copy = p_d + i_bz * d * r, p_copy + i_bz * (D * R)
            p_old = p_new
            if step == 1:
                p_old = p_initial + i_bz * d * r
            p_parts = p_sums + i_bz * programs * ((D + R) * R)
            # D^T D is recomputed before it is needed
            b_cc = b_gram_place.index(z).slice(0, COLS if COLS > 8 else 8, dim=0)
            for i_u in range(i_p, D // 64 * (R // COLS), programs):
                i_d, i_r = i_u // (R // COLS), i_u % (R // COLS)
                update_unit(
                    p_old, p_new, p_new_copy, p_parts, b_d.index(i_d), b_cc, d, r, programs, i_d, i_r, eps,
                    D, R, COLS, W,
                )  # fmt: skip
            if step < steps:
                arrive(p_own_count + 1)
                wait(p_own_count + 1, programs * step)
                take_bases(p_new_copy, b_d, b_gram_place.index(z), D, R, R, z, D, R, W)
                run_step(
                    p_x, p_c, p_c, p_c, p_x, p_sums,
                    b_tiles, b_d, b_codes_place, b_gram_place, d, n, width, r, i_p, i_b, programs, tiles, step, eps,
                    s_xd, s_xn, s_xd, s_xn,
                    D, R, BN, PLACES, WIDE, N_FAST, ASYNC, False, False, False, False, W,
                )  # fmt: skip
    if ASYNC:
        async_copy.wait_group(0)  # copies for one more step, which are not used
