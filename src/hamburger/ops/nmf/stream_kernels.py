"""A sweep of NMF in one pass over X, in Gluon for Hopper. Letters and pieces: `hamburger.ops.wave_kernels`."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.ops.layouts import SWIZZLED, product_layout
from hamburger.ops.stream_kernels import load_bases_at_once, own_codes, store_sums, strides_of_tile
from hamburger.ops.wave_kernels import (
    gram,
    load_columns,
    load_columns_async,
    project,
    ready,
    seen_as,
    softmax,
    write_product,
    zero_of,
)


@gluon.jit
def round_bases(p_d, b_d, d, r, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """D into shared memory, in bfloat16.   d: D/64 64 R"""
    b_rows = load_bases_at_once(p_d, d, r, D, R, W)
    for i in gl.static_range(D // 64):
        b_d.index(i).store(b_rows[i].to(gl.bfloat16))


@gluon.jit(do_not_specialize=["programs"])
def stream_kernel(
    p_x, p_d, p_c, p_last, p_ratio, p_y, p_sums,
    d, n, r, programs, eps, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, READOUT: gl.constexpr, RATIO: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The codes of a sweep and what D needs of them, or (READOUT) the last codes. Grid: programs of an image, b.

    A program owns every `programs`-th tile of BN columns, from the i_p-th on. X C^T and C C^T of all of them stay in
    its registers in float32, and X is read once. In shared memory, all in bfloat16: D and D^T D, the same for all
    tiles; a tile of X, and where ASYNC the next one, on its way while this one is worked on; the codes of a tile before
    and after. Programs do not wait for each other; within one, `ready` stands between what threads write to shared
    memory and who reads it or writes there next.

    x, y: b d n in bfloat16, any strides. d: b d r in float32. c, last: b n r, the codes before and after (FIRST makes
    those before). sums: b programs (d + r) r in float32, the share of each program, X C^T above C C^T, written where
    not READOUT. ratio: C / (D^T D C + eps) before the read-out.
    """
    W: gl.constexpr = num_warps
    XD: gl.constexpr = 256 if D > 256 else D  # an operand of the matrix units has at most 256 rows
    mma: gl.constexpr = product_layout(BN, R, W)
    mma_d: gl.constexpr = product_layout(XD, R, W)
    b_tiles = gl.allocate_shared_memory(gl.bfloat16, [2 if ASYNC else 1, D, BN], SWIZZLED)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    b_old = gl.allocate_shared_memory(gl.bfloat16, [BN, R], SWIZZLED)
    b_new = gl.allocate_shared_memory(gl.bfloat16, [BN, R], SWIZZLED)
    b_g = gl.allocate_shared_memory(gl.bfloat16, [R, R], SWIZZLED)

    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_x += i_b * s_xb
    p_c += i_b * n * r
    p_last += i_b * n * r
    p_ratio += i_b * n * r
    p_y += i_b * s_yb
    p_own = p_sums + (i_b * programs + i_p) * ((d + r) * r)
    zero_c = gl.zeros([BN, R], gl.float32, mma)
    zero_r = gl.zeros([R, R], gl.float32, mma)

    if ASYNC:
        load_columns_async(p_x, b_tiles.index(0), d, n, s_xd, s_xn, i_p, D, BN, W)
    round_bases(p_d + i_b * d * r, b_d, d, r, D, R, W)
    ready()
    b_g.store(warpgroup_mma_wait(0, deps=[gram(b_d, zero_r, 0, D)]).to(gl.bfloat16))
    if ASYNC:
        async_copy.wait_group(0)
        ready()

    i_x = 0  # which of b_tiles has this tile
    if not FIRST:
        o_c, m_c = own_codes(i_p, n, r, BN, R, mma)
        b_codes = gl.load(p_c + o_c, mask=m_c, other=0.0)
    b_xc = gl.zeros([XD, R], gl.float32, mma_d)  # the first 256 rows of X C^T,
    b_more = b_xc  # and those after them
    b_cc = zero_r
    for i_t in range(i_p, gl.cdiv(n, BN), programs):
        z = zero_of(i_t)
        s_down, s_along = strides_of_tile(s_xd, s_xn, z, N_FAST)
        b_x = seen_as(b_tiles.index(i_x), gl.bfloat16, [D // XD, XD, BN], SWIZZLED)
        if not ASYNC:
            load_columns(p_x, b_x, d, n, s_down, s_along, i_t, D, 64, XD, BN, N_FAST, W)
            ready()
        b_xd = project(b_x, b_d, zero_c, z, D, XD)
        if ASYNC:  # behind the last tile there are zeros
            i_x = 1 - i_x
            load_columns_async(p_x, b_tiles.index(i_x), d, n, s_down, s_along, i_t + programs, D, BN, W)
        o_c, m_c = own_codes(i_t, n, r + z, BN, R, mma)
        if FIRST:  # the codes before: softmax of D^T X
            m_r = (gl.arange(0, R, gl.SliceLayout(0, mma)) < r)[None, :]
            b_xd = warpgroup_mma_wait(0, deps=[b_xd])
            b_codes = softmax(b_xd, m_r)
        # the codes after: C * D^T X / (D^T D C + eps)
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
            gl.store(p_last + o_c, b_codes, mask=m_c)
        if not FIRST:  # those of the next tile, on their way during the sums
            o_c, m_c = own_codes(i_t + programs, n, r + z, BN, R, mma)
            b_codes = gl.load(p_c + o_c, mask=m_c, other=0.0)
        if not READOUT:
            b_xc, b_more, b_cc = warpgroup_mma_wait(0, deps=[b_xc, b_more, b_cc])
        if ASYNC:
            async_copy.wait_group(0)
        ready()  # the next tile is here, and this one's place is free
    if not READOUT:
        store_sums(p_own, b_xc, 0, d, r)
        if D > XD:
            store_sums(p_own, b_more, XD, d, r)
        store_sums(p_own + d * r, b_cc, 0, r, r)
