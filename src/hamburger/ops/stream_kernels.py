"""What sweeps in one pass over X are made of, in Gluon. Letters, and more: `hamburger.ops.wave_kernels`.

A tile of X, BN columns, lies in shared memory in pieces of ROWS rows: x is D/ROWS ROWS BN everywhere here.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from hamburger.ops.layouts import row_layout
from hamburger.ops.wave_kernels import load_columns_async

ROWS = gl.constexpr(128)  # of X that go together: its tile is copied, multiplied and freed in such pieces


@gluon.jit
def way_of(sweep, i_p, programs, tiles):
    """Where a sweep begins and how far it is to its next tile: it goes through a program's tiles there or back.

    Back begins with what the card's cache still has of X.   tiles: how many the program owns
    """
    back = sweep % 2
    return i_p + back * (tiles - 1) * programs, programs - 2 * back * programs


@gluon.jit
def tile_at(k, begin, way, tiles):
    """The k-th tile of a sweep; after its last one come those of the next sweep, which is on its way back.

    k: at most two beyond the last
    """
    return begin + way * gl.maximum(gl.minimum(k, 2 * tiles - 1 - k), 0)


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
def load_bases_at_once(p_d, d, r, s_d, z, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """D, zeros beyond d and r: all that memory has to give is asked for at once.   ->   D/64 times 64 R

    Others may have written it: past L1.
    """
    ld_d: gl.constexpr = row_layout(R, 8, W)
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))
    found = ()
    for i in gl.static_range(D // 64):
        o_d = z + i * 64 + gl.arange(0, 64, gl.SliceLayout(1, ld_d))
        # 64 R
        m_d = (o_d < d)[:, None] & (o_r < r)[None, :]
        rows = gl.load(p_d + o_d[:, None] * s_d + o_r[None, :], mask=m_d, other=0.0, cache_modifier=".cg")
        found = found + (rows,)  # noqa: RUF005  Gluon does not unpack
    return found


@gluon.jit
def strides_of_tile(s_d, s_n, z, N_FAST: gl.constexpr):
    """The distances of rows and of columns, the one that is not 1 by a zero of this tile: see `zero_of`.

    Else the addresses of all rows would be kept from tile to tile.
    """
    if N_FAST:
        s_d += z
    else:
        s_n += z
    return s_d, s_n


@gluon.jit
def own_codes(i_t, n, r, BN: gl.constexpr, R: gl.constexpr, mma: gl.constexpr):
    """Where the codes of a tile lie, and which of them there are.   ->   BN R, twice"""
    o_n = i_t * BN + gl.arange(0, BN, gl.SliceLayout(1, mma)).to(gl.int64)
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))
    return o_n[:, None] * r + o_r[None, :], (o_n < n)[:, None] & (o_r < r)[None, :]


@gluon.jit
def store_sums(p_own, b_sum, first, d, r):
    """Rows of a matrix of d r in float32.   b_sum: rows R, the first of them number `first`"""
    layout: gl.constexpr = b_sum.type.layout
    o_d = first + gl.arange(0, b_sum.type.shape[0], gl.SliceLayout(1, layout))
    o_r = gl.arange(0, b_sum.type.shape[1], gl.SliceLayout(0, layout))
    gl.store(p_own + o_d[:, None] * r + o_r[None, :], b_sum, mask=(o_d < d)[:, None] & (o_r < r)[None, :])
