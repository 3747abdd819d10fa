"""The bread of many columns, in Gluon for Hopper: W stays in registers, and X passes through shared memory.

Letters: `hamburger.kernels.common`; what keeps order: `hamburger.kernels.hopper.common`. A tile is BN columns of X, all
K rows of it. A program takes one after another, a turn for each: while the matrix units make the product of a tile, the
two tiles after it are on their way, and what was made of the tile before is finished and written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.kernels.hopper.common import (
    load_async,
    load_columns_async,
    ready,
    seen_as,
    store_rows,
    threads_meet,
    zero_of,
)
from hamburger.kernels.hopper.layouts import SWIZZLED, product_layout, row_layout, tile_layout

BM = gl.constexpr(128)  # rows of W and Z that a program owns
BN = gl.constexpr(64)
BK = gl.constexpr(64)  # rows of X in one product
ROWS = gl.constexpr(128)  # of X that are copied in one go
BUFFERS = gl.constexpr(3)  # for tiles: one is multiplied, and two are on their way


@gluon.jit
def load_weight(
    p_w, i_m, d, c, s_wd, s_wc, K: gl.constexpr, C_FAST: gl.constexpr, mma: gl.constexpr, WARPS: gl.constexpr
):  # fmt: skip
    """BM rows of W as left factors, zeros beyond d and c. All is asked for at once.   ->   K/BK times BM BK"""
    ld_w: gl.constexpr = tile_layout(BM, BK, C_FAST, WARPS)
    o_d = i_m * BM + gl.arange(0, BM, gl.SliceLayout(1, ld_w)).to(gl.int64)
    found, parts = (), ()
    for i in gl.static_range(K // BK):
        o_c = i * BK + gl.arange(0, BK, gl.SliceLayout(0, ld_w)).to(gl.int64)
        # BM BK
        m_w = (o_d < d)[:, None] & (o_c < c)[None, :]
        found += (gl.load(p_w + o_d[:, None] * s_wd + o_c[None, :] * s_wc, mask=m_w, other=0.0),)
    for i in gl.static_range(K // BK):
        parts += (gl.convert_layout(found[i], gl.DotOperandLayout(0, mma, 2)),)
    return parts


class Stride(NamedTuple):
    """From one tile of a program to its next: so many images and tiles on."""

    images: Any
    tiles: Any
    tiles_n: Any  # of an image
    b: Any


@gluon.jit
def next_tile(tile, stride):
    """Where the next tile of a program lies: its image, and its number there, behind the last where there is none."""
    i_b, i_n = tile[0] + stride.images, tile[1] + stride.tiles
    if i_n >= stride.tiles_n:
        i_b += 1
        i_n -= stride.tiles_n
    if i_b >= stride.b:
        i_n = stride.tiles_n
    return i_b, i_n


@gluon.jit
def load_tile_async(p_x, b_x, tile, n, s_xb, s_xc, s_xn, C: gl.constexpr, K: gl.constexpr, WARPS: gl.constexpr):
    """A tile of X, under way.   b_x: K BN"""
    p_x += tile[0].to(gl.int64) * s_xb
    b_x = seen_as(b_x, gl.bfloat16, [K // ROWS, ROWS, BN], SWIZZLED)
    for i in gl.static_range(K // ROWS):  # all rows at once would find no registers for their addresses
        load_columns_async(p_x, b_x.index(i), C, n, s_xc, s_xn, tile[1], ROWS, BN, WARPS, i * ROWS)


@gluon.jit
def load_more_async(p_more, b_more, tile, i_m, d, n, s_mb, s_md, s_mn, WARPS: gl.constexpr):
    """What is added to a tile of Z, under way.   more: BM BN"""
    ld_m: gl.constexpr = row_layout(BN, 8, WARPS)
    o_d = i_m * BM + gl.arange(0, BM, gl.SliceLayout(1, ld_m)).to(gl.int64)
    o_n = tile[1] * BN + gl.arange(0, BN, gl.SliceLayout(0, ld_m)).to(gl.int64)
    # BM BN
    m_m = (o_d < d)[:, None] & (o_n < n)[None, :]
    p_more += tile[0].to(gl.int64) * s_mb
    load_async(b_more, p_more + o_d[:, None] * s_md + o_n[None, :] * s_mn, mask=m_m)
    async_copy.commit_group()


@gluon.jit
def multiply(b_w, b_x, b_z, K: gl.constexpr):
    """W X for a tile, under way.   x: K BN   z: BM BN, whose registers are free"""
    b_x = seen_as(b_x, gl.bfloat16, [K // BK, BK, BN], SWIZZLED)
    for i in gl.static_range(K // BK):
        b_z = warpgroup_mma(b_w[i], b_x.index(i), b_z, use_acc=i > 0, is_async=True)
    return b_z


@gluon.jit
def finish(b_z, b_bias, b_rows, BIAS: gl.constexpr, MORE: gl.constexpr, RECTIFY: gl.constexpr):
    """What follows the product.   z: BM BN, the product   rows: BM BN in shared memory, from `more` to Z"""
    if BIAS:
        b_z += b_bias[:, None]
    if MORE:
        b_z += b_rows.load(b_z.type.layout).to(gl.float32)
    if RECTIFY:
        b_z = gl.where(b_z < 0, 0.0, b_z)
    b_rows.store(b_z.to(gl.bfloat16))


@gluon.jit
def store_tile(p_z, b_rows, tile, i_m, d, n, s_zb, s_zd, s_zn, WARPS: gl.constexpr):
    """A tile of Z, 16 bytes at a time; nothing where there is no such tile."""
    ld_z: gl.constexpr = row_layout(BN, 8, WARPS)
    o_n = tile[1] * BN + gl.arange(0, BN, gl.SliceLayout(0, ld_z)).to(gl.int64)
    store_rows(b_rows, p_z + tile[0].to(gl.int64) * s_zb, o_n, i_m * BM, d, n, s_zd, s_zn, BM, ld_z)


@gluon.jit
def turn(
    b_w, b_z, b_before, b_bias, b_x, b_free, b_rows, p_x, p_more, p_z, d, n, zero, before, after, coming, i_m,
    s_xb, s_xc, s_xn, s_mb, s_md, s_mn, s_zb, s_zd, s_zn,
    BIAS: gl.constexpr, MORE: gl.constexpr, RECTIFY: gl.constexpr, C: gl.constexpr, K: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """The product of a tile, which is there, and meanwhile all else.   ->   BM BN

    b_z: any numbers, whose registers become the product's. b_before: the product of the tile before. b_x: the tile.
    b_free: where the tile before was. b_rows: what is added to the tile before, then its place on its way out, and at
    last what is added to the tile after this one. before, after, coming: where these two lie, and the one behind them.
    zero: see `zero_of`
    """
    # The wait at the head is for ptxas alone: that product was waited for at the end of the turn before. Were one under
    # way at the end of the loop, ptxas would wait for each; and not sure of the one before, it would wait for this one
    # before it finishes that.
    b_before = warpgroup_mma_wait(0, deps=[b_before])
    b_z = multiply(b_w, b_x, b_z, K)
    threads_meet()  # all are through with the tile before: its place is free
    load_tile_async(p_x, b_free, coming, n, s_xb, s_xc + zero, s_xn, C, K, WARPS)
    finish(b_before, b_bias, b_rows, BIAS, MORE, RECTIFY)
    threads_meet()
    store_tile(p_z, b_rows, before, i_m, d, n, s_zb, s_zd + zero, s_zn, WARPS)
    if MORE:
        threads_meet()
        load_more_async(p_more, b_rows, after, i_m, d, n, s_mb, s_md + zero, s_mn, WARPS)
    # the next tile, and what is added to this one; those after them may still be on their way
    async_copy.wait_group(K // ROWS + 1 if MORE else K // ROWS)
    ready()
    return warpgroup_mma_wait(0, deps=[b_z])


@gluon.jit(do_not_specialize=["b", "programs"])
def gemm_kernel(
    p_x, p_w, p_bias, p_more, p_z, b, d, n, programs,
    s_xb, s_xc, s_xn, s_wd, s_wc, s_mb, s_md, s_mn, s_zb, s_zd, s_zn,
    BIAS: gl.constexpr, MORE: gl.constexpr, RECTIFY: gl.constexpr, C_FAST: gl.constexpr,
    C: gl.constexpr, K: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Z = W X (+ bias) (+ more), with a ReLU where RECTIFY. Grid: tiles of d, programs for each of them.

    A program keeps its rows of W in registers and takes every `programs`-th tile of the columns of all images. Programs
    with the same columns are neighbours: what they all read of X is still in the cache.
    x: b c n   w: d c   bias: d   more, z: b d n, which may be the same   All but the bias in bfloat16; n is the fast
    axis of x, more and z, and eight neighbours go together. C_FAST: whether c is that of w. C, K: c, and c padded.
    """
    WARPS: gl.constexpr = num_warps
    mma: gl.constexpr = product_layout(BM, BN, WARPS)
    tiles_n = gl.cdiv(n, BN)
    i_m, i_p = gl.program_id(0), gl.program_id(1)
    tiles = gl.cdiv(b * tiles_n - i_p, programs)  # that it owns
    stride = Stride(programs // tiles_n, programs % tiles_n, tiles_n, b)
    before, now = (i_p * 0, tiles_n), (i_p // tiles_n, i_p % tiles_n)
    after = next_tile(now, stride)

    b_tiles = gl.allocate_shared_memory(gl.bfloat16, [BUFFERS, K, BN], SWIZZLED)
    load_tile_async(p_x, b_tiles.index(0), now, n, s_xb, s_xc, s_xn, C, K, WARPS)
    load_tile_async(p_x, b_tiles.index(1), after, n, s_xb, s_xc, s_xn, C, K, WARPS)
    b_w = load_weight(p_w, i_m, d, C, s_wd, s_wc, K, C_FAST, mma, WARPS)
    b_bias = gl.zeros([BM], gl.float32, gl.SliceLayout(1, mma))
    if BIAS:
        o_d = i_m * BM + gl.arange(0, BM, gl.SliceLayout(1, mma))
        b_bias = gl.load(p_bias + o_d, mask=o_d < d, other=0.0).to(gl.float32)

    # Two tiles in a round of the loop, by turns in other registers: one is made while the other is finished.
    b_even, b_odd = gl.zeros([BM, BN], gl.float32, mma), gl.zeros([BM, BN], gl.float32, mma)
    b_even_rows = gl.allocate_shared_memory(gl.bfloat16, [BM, BN], SWIZZLED)
    b_odd_rows = b_even_rows
    if MORE:
        b_odd_rows = gl.allocate_shared_memory(gl.bfloat16, [BM, BN], SWIZZLED)
        load_more_async(p_more, b_even_rows, now, i_m, d, n, s_mb, s_md, s_mn, WARPS)
    async_copy.wait_group(K // ROWS + 1 if MORE else K // ROWS)
    ready()
    first, second, free = 0, 1, 2
    for k in range(0, tiles, 2):
        zero = zero_of(k)
        coming = next_tile(after, stride)
        b_even = turn(
            b_w, b_even, b_odd, b_bias, b_tiles.index(first), b_tiles.index(free), b_odd_rows,
            p_x, p_more, p_z, d, n, zero, before, after, coming, i_m,
            s_xb, s_xc, s_xn, s_mb, s_md, s_mn, s_zb, s_zd, s_zn, BIAS, MORE, RECTIFY, C, K, WARPS,
        )  # fmt: skip
        before = after
        after = next_tile(coming, stride)
        b_odd = turn(
            b_w, b_odd, b_even, b_bias, b_tiles.index(second), b_tiles.index(first), b_even_rows,
            p_x, p_more, p_z, d, n, zero, now, coming, after, i_m,
            s_xb, s_xc, s_xn, s_mb, s_md, s_mn, s_zb, s_zd, s_zn, BIAS, MORE, RECTIFY, C, K, WARPS,
        )  # fmt: skip
        now = coming
        first, second, free = free, first, second
    async_copy.wait_group(0)
    if tiles % 2 == 0:  # else it is none
        finish(b_odd, b_bias, b_odd_rows, BIAS, MORE, RECTIFY)
        threads_meet()
        store_tile(p_z, b_odd_rows, before, i_m, d, n, s_zb, s_zd, s_zn, WARPS)
