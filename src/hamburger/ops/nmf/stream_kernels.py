"""A sweep of NMF in one pass over X, in Gluon for Hopper. Letters and pieces: `hamburger.ops.wave_kernels`."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.ops.layouts import SWIZZLED, product_layout
from hamburger.ops.nmf.wave_kernels import update_unit
from hamburger.ops.stream_kernels import (
    ROWS,
    load_bases_at_once,
    load_piece_async,
    load_tile_async,
    own_codes,
    strides_of_tile,
)
from hamburger.ops.wave_kernels import (
    block_offset,
    gram,
    load_bases,
    load_columns,
    ready,
    softmax,
    threads_meet,
    write_product,
    zero_of,
)


@gluon.jit
def round_bases(p_d, b_d, d, r, s_d, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """D into shared memory, in bfloat16, zeros beyond d and r.   b_d: D/64 64 R"""
    b_rows = load_bases_at_once(p_d, d, r, s_d, D, R, W)
    for i in gl.static_range(D // 64):
        b_d.index(i).store(b_rows[i].to(gl.bfloat16))


@gluon.jit
def project_pieces(b_x, b_d, zero, z, ASYNC: gl.constexpr, PIECES: gl.constexpr):
    """X^T D, a piece of X as soon as it is there.   x: PIECES ROWS BN   d: D/64 64 R   ->   BN R"""
    b_xd = zero
    for i in gl.static_range(PIECES):
        if ASYNC:
            async_copy.wait_group(PIECES - 1 - i)
            ready()
        for j in gl.static_range(ROWS // 64):
            b_part = b_x.index(i + z).slice(j * 64, 64, dim=0).permute([1, 0])
            b_xd = warpgroup_mma(b_part, b_d.index(i * (ROWS // 64) + j + z), b_xd, use_acc=i + j > 0, is_async=True)
    return warpgroup_mma_wait(0, deps=[b_xd])


@gluon.jit
def ratio_of(b_codes, b_c, b_g, zero, m_c, eps):
    """C / (D^T D C + eps), zero where there is no column.   codes: BN R   c: BN R, their place   g: R R"""
    b_c.store(b_codes.to(gl.bfloat16))
    ready()
    b_gc = warpgroup_mma(b_c, b_g, zero, use_acc=False)
    # the softmax of a column beyond n is not zero, and with eps = 0 the padding is 0 / 0
    return gl.where(m_c, b_codes / (b_gc + eps), 0.0)


@gluon.jit
def add_to_sums(
    b_sums, b_cc, p_x, b_x, b_c, d, n, s_xd, s_xn, i_next, z,
    ASYNC: gl.constexpr, PIECES: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Each piece's X C^T, and C C^T, added to their sums.   ->   PIECES of ROWS R,  R R

    Where ASYNC each piece, as soon as it is free, is filled with the same piece of tile i_next.
    """
    under_way = ()
    for i in gl.static_range(PIECES):
        under_way += (warpgroup_mma(b_x.index(i + z), b_c, b_sums[i], is_async=True),)
    b_cc = warpgroup_mma(b_c.permute([1, 0]), b_c, b_cc, is_async=True)
    b_sums = ()
    for i in gl.static_range(PIECES):
        b_sums += (warpgroup_mma_wait(PIECES - i, deps=[under_way[i]]),)
        if ASYNC:
            threads_meet()
            load_piece_async(p_x, b_x, d, n, s_xd, s_xn, i_next, i, BN, W)
    return b_sums, warpgroup_mma_wait(0, deps=[b_cc])


@gluon.jit
def store_share(p_own, b_sum, first, R: gl.constexpr, WIDE: gl.constexpr):
    """Rows of a share, in blocks.   b_sum: rows R, the first of them number `first`"""
    layout: gl.constexpr = b_sum.type.layout
    o_d = first + gl.arange(0, b_sum.type.shape[0], gl.SliceLayout(1, layout))
    o_r = gl.arange(0, R, gl.SliceLayout(0, layout))
    gl.store(p_own + block_offset(o_d[:, None], o_r[None, :], R, WIDE), b_sum.to(gl.bfloat16))


@gluon.jit(do_not_specialize=["programs"])
def stream_kernel(
    p_x, p_d, p_c, p_last, p_ratio, p_y, p_sums,
    d, n, r, programs, eps, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, COLS: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, READOUT: gl.constexpr, RATIO: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The codes of a sweep and what D needs of them, or (READOUT) the last codes. Grid: programs of an image, b.

    A program owns every `programs`-th tile of BN columns, from the i_p-th on. X C^T and C C^T of all of them stay in
    its registers in float32, and X is read once. In shared memory, all in bfloat16: D and D^T D, the same for all
    tiles; a tile of X in pieces, and the codes of that tile. Where ASYNC a piece of the next tile is on its way as soon
    as nobody needs the same piece of this one. Programs do not wait for each other; within one, `ready` and
    `threads_meet` stand between what threads write to shared memory and who reads it or writes there next.

    x, y: b d n in bfloat16, any strides. d: b d r in float32 where FIRST, else b D R in bfloat16, as `update_kernel`
    left it. c, last: b n r, the codes before and after (FIRST makes those before). sums: b programs (D + R) R in
    bfloat16, in blocks, the share of each program, X C^T above C C^T, written where not READOUT. ratio:
    C / (D^T D C + eps) before the read-out. COLS: of a unit of `update_kernel`.
    """
    W: gl.constexpr = num_warps
    PIECES: gl.constexpr = D // ROWS
    WIDE: gl.constexpr = COLS if COLS < 8 else 8  # of a block of the sums
    mma: gl.constexpr = product_layout(BN, R, W)
    mma_d: gl.constexpr = product_layout(ROWS, R, W)
    b_x = gl.allocate_shared_memory(gl.bfloat16, [PIECES, ROWS, BN], SWIZZLED)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_c = gl.allocate_shared_memory(gl.bfloat16, [BN, R], SWIZZLED)
    b_g = gl.allocate_shared_memory(gl.bfloat16, [R, R], SWIZZLED)

    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_x += i_b * s_xb
    p_c += i_b * n * r
    p_last += i_b * n * r
    p_ratio += i_b * n * r
    p_y += i_b * s_yb
    p_own = p_sums + (i_b * programs + i_p) * ((D + R) * R)
    zero_c = gl.zeros([BN, R], gl.float32, mma)
    zero_r = gl.zeros([R, R], gl.float32, product_layout(R, R, W))

    if ASYNC:
        load_tile_async(p_x, b_x, d, n, s_xd, s_xn, i_p, PIECES, BN, W)
    if FIRST:
        round_bases(p_d + i_b * d * r, b_d, d, r, r, D, R, W)
    else:
        round_bases(p_d + i_b * (D * R), b_d, D, R, R, D, R, W)
        o_c, m_c = own_codes(i_p, n, r, BN, R, mma)
        b_codes = gl.load(p_c + o_c, mask=m_c, other=0.0)
    ready()
    b_g.store(warpgroup_mma_wait(0, deps=[gram(b_d, zero_r, 0, D)]).to(gl.bfloat16))

    b_cc = zero_r
    b_sums = ()
    for _ in gl.static_range(PIECES):
        b_sums += (gl.zeros([ROWS, R], gl.float32, mma_d),)
    for i_t in range(i_p, gl.cdiv(n, BN), programs):
        z = zero_of(i_t)
        s_down, s_along = strides_of_tile(s_xd, s_xn, z, N_FAST)
        o_c, m_c = own_codes(i_t, n, r + z, BN, R, mma)
        if not ASYNC:
            load_columns(p_x, b_x, d, n, s_down, s_along, i_t, D, 64, ROWS, BN, N_FAST, W)
        # C * D^T X / (D^T D C + eps)
        if not FIRST:  # the denominator before X^T D, which would hold registers meanwhile
            b_ratio = ratio_of(b_codes, b_c, b_g, zero_c, m_c, eps)
        elif not ASYNC:
            ready()
        b_xd = project_pieces(b_x, b_d, zero_c, z, ASYNC, PIECES)
        if FIRST:
            m_r = (gl.arange(0, R, gl.SliceLayout(0, mma)) < r)[None, :]
            b_ratio = ratio_of(softmax(b_xd, m_r), b_c, b_g, zero_c, m_c, eps)
        b_codes = b_ratio * b_xd
        threads_meet()  # the codes before are no longer needed, nor is X for the read-out
        b_c.store(b_codes.to(gl.bfloat16))
        ready()
        if READOUT:
            if ASYNC and not Y:
                load_tile_async(p_x, b_x, d, n, s_down, s_along, i_t + programs, PIECES, BN, W)
            gl.store(p_last + o_c, b_codes.to(p_last.dtype.element_ty), mask=m_c)
            if RATIO:
                gl.store(p_ratio + o_c, b_ratio.to(p_ratio.dtype.element_ty), mask=m_c)
            if Y:
                s_y_down, s_y_along = strides_of_tile(s_yd, s_yn, z, N_FAST)
                write_product(b_d, b_c, b_x, p_y, d, n, s_y_down, s_y_along, i_t, D, ROWS, BN, N_FAST, W)
                if ASYNC:  # Y has passed through the place of X
                    threads_meet()
                    load_tile_async(p_x, b_x, d, n, s_down, s_along, i_t + programs, PIECES, BN, W)
        else:
            gl.store(p_last + o_c, b_codes, mask=m_c)
        if not FIRST:  # those of the next tile, on their way during the sums
            o_c, m_c = own_codes(i_t + programs, n, r + z, BN, R, mma)
            b_codes = gl.load(p_c + o_c, mask=m_c, other=0.0)
        if not READOUT:
            b_sums, b_cc = add_to_sums(
                b_sums, b_cc, p_x, b_x, b_c, d, n, s_down, s_along, i_t + programs, z, ASYNC, PIECES, BN, W
            )  # fmt: skip
        threads_meet()  # the place of X and of C is free
    if ASYNC:
        async_copy.wait_group(0)  # the zeros behind the last tile
        threads_meet()
    if not READOUT:
        for i in gl.static_range(PIECES):
            store_share(p_own, b_sums[i], i * ROWS, R, WIDE)
        store_share(p_own + D * R, b_cc, 0, R, WIDE)


@gluon.jit(do_not_specialize=["programs"])
def update_kernel(
    p_old, p_new, p_copy, p_sums, d, r, programs, eps,
    D: gl.constexpr, R: gl.constexpr, COLS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The new D from all shares of a sweep. Grid: units of 64 rows and COLS columns, b.

    A program owns a unit, and holds its 64 rows of the old D in shared memory.
    old, new: b d r in float32. copy: b D R in bfloat16, the new D for the next sweep. sums: b programs (D + R) R, as
    the programs of `stream_kernel` left them.
    """
    W: gl.constexpr = num_warps
    b_rows = gl.allocate_shared_memory(gl.bfloat16, [1, 64, R], SWIZZLED)
    b_cc = gl.allocate_shared_memory(gl.bfloat16, [COLS if COLS > 8 else 8, R], SWIZZLED)
    i_u, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    i_d, i_r = i_u // (R // COLS), i_u % (R // COLS)
    p_old += i_b * d * r
    p_new += i_b * d * r
    p_copy += i_b * (D * R)
    p_sums += i_b * programs * ((D + R) * R)
    load_bases(p_old + i_d * 64 * r, b_rows, d - i_d * 64, r, r, 0, 64, R, W)
    update_unit(p_old, p_new, p_copy, p_sums, b_rows.index(0), b_cc, d, r, programs, i_d, i_r, eps, D, R, COLS, W)
