"""The exchange of a step of VQ and CD in one launch, in Gluon: partial sums of X C^T and of C 1, and new bases from
them.

Each program writes its shares, the sums over its own columns, to global memory. The first OWNERS programs own an equal
number of rows of D each: they alone add up all programs' partial sums of their rows, in a fixed order, and write
D. Who waits for whom is in `cosine_resident.move_bases`.

A partial sum of X C^T is written in float32, or in 16 bits (SCALED: where the memory for it is of int16) as
V diag(width) with

- width: of a column, sum_j c_j |x_j| T rounded to a power of two. It brings the columns of V to like sizes, whatever
  their masses and the norms of their x.
- top: of a row of V, its largest entry / 32767. In units of it a row has most digits of float32 in half the bytes.

The exponent of the width takes the place of the last 8 bits of the mass, which scales a column of D and no more.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.kernels.hopper.common import ready
from hamburger.kernels.hopper.cosine_common import EPS, TINY, rest, stage_rows, store_halves
from hamburger.kernels.hopper.layouts import SWIZZLED, product_layout

FULL = gl.constexpr(32767.0)
MAGIC = gl.constexpr(12582912.0)  # 1.5 * 2^23: of |v| < 2^15 plus this, the lowest 16 bits are v rounded, an int16
EXPONENT = gl.constexpr(0x7F800000)  # its bits in a float32


@gluon.jit
def fine_offset(o_d, o_r, R: gl.constexpr):
    """Where an element of a partial sum lies: in blocks of 8 x 8, in them halves of 4 rows, in them columns two by two.

    The blocks are those of `hopper.common.block_offset`, and for the same reason. In them a reducer's thread reads a
    tile of 4 rows of 2 columns at a time, so that it has to know the masses of two columns only.
    """
    return o_r % 2 + 2 * (o_d % 4) + 8 * (o_r % 8 // 2) + 32 * (o_d % 8 // 4) + 64 * (o_r // 8 + (R // 8) * (o_d // 8))


@gluon.jit
def width_bits(b_codes, b_scale, across: gl.constexpr):
    """The width of each column, a float32 with no bits but its exponent.   scale: BN, 1 / (|x| T)   ->   R"""
    m_some = b_scale > 0.0
    b_length = gl.where(m_some, 1.0 / gl.where(m_some, b_scale, 1.0), 0.0)
    b_width = gl.convert_layout(gl.sum(b_codes * b_length[:, None], axis=0), across)
    return gl.where(b_width > 1e-30, b_width, 0.0).to(gl.int32, bitcast=True) & EXPONENT


@gluon.jit
def pack_mass(b_mass, b_width):
    """Masses with the widths' exponents in their last 8 bits.   ->   R, to be taken apart by `unpack_mass`"""
    b_packed = (b_mass.to(gl.int32, bitcast=True) + 128) & -256 | b_width >> 23
    # NaN among the columns of X makes NaN of every mass, and by way of the masses of all of D
    return gl.where(b_mass == b_mass, b_packed.to(gl.float32, bitcast=True), b_mass)


@gluon.jit
def unpack_mass(b_packed):
    """->   masses,  widths"""
    b_bits = b_packed.to(gl.int32, bitcast=True)
    b_mass = (b_bits & -256).to(gl.float32, bitcast=True)
    return b_mass, (b_bits << 23 & EXPONENT).to(gl.float32, bitcast=True)


@gluon.jit
def inverse_width(b_width):
    """1 / width, 0 where there is none: the exponent of a power of two with its sign changed."""
    return gl.where(b_width > 0, 0x7F000000 - b_width, 0).to(gl.float32, bitcast=True)


@gluon.jit
def in_units(b_v):
    """Rows of V in units of their tops.   v: BD R   ->   BD R, |entries| up to FULL,  the tops: BD"""
    b_top = gl.max(gl.abs(b_v), axis=1) * (1.0 / FULL)
    m_top = b_top > TINY
    return b_v * gl.where(m_top, 1.0 / gl.where(m_top, b_top, 1.0), 0.0)[:, None], b_top


@gluon.jit
def rounded(b_units):
    """To int16."""
    return (b_units + MAGIC).to(gl.int32, bitcast=True).to(gl.int16)


@gluon.jit
def times_codes(b_rows, b_c, zero, z):
    """Rows of X C^T with both halves of C, under way.   rows: BD BN   c: 2 BN R   ->   BD R"""
    b_share = warpgroup_mma(b_rows, b_c.index(z), zero, use_acc=False, is_async=True)
    return warpgroup_mma(b_rows, b_c.index(z + 1), b_share, is_async=True)


@gluon.jit
def write_fine_sums(
    b_codes, b_scale, b_x, p_shares, p_mass, p_top, z, i_p,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """This program's partial sum of X C^T and of C 1, for the reducers.

    In registers, codes: BN R   scale: BN, 1 / (|x| T).   In shared memory, x: D/BD BD BN, and C in two halves.
    In global memory, shares: programs D R   mass: programs R   top: programs D
    """
    SCALED: gl.constexpr = p_shares.dtype.element_ty == gl.int16
    BD: gl.constexpr = stage_rows(R)
    STAGES: gl.constexpr = D // BD
    mma: gl.constexpr = product_layout(BD, R, W)
    across: gl.constexpr = gl.SliceLayout(0, mma)
    b_c = gl.allocate_shared_memory(gl.bfloat16, [2, BN, R], SWIZZLED)
    b_high = b_codes.to(gl.bfloat16)
    b_c.index(z).store(b_high)
    b_c.index(z + 1).store(rest(b_codes, b_high))
    o_d = gl.arange(0, BD, gl.SliceLayout(1, mma))
    o_r = gl.arange(0, R, across)
    b_mass = gl.convert_layout(gl.sum(b_codes, axis=0), across)
    if SCALED:
        b_width = width_bits(b_codes, b_scale, across)
        b_mass = pack_mass(b_mass, b_width)
        b_inverse = inverse_width(b_width)
    gl.store(p_mass + i_p * R + o_r, b_mass)
    p_shares += i_p * (D * R) + fine_offset(o_d[:, None], o_r[None, :], R)
    p_top += i_p * D + o_d
    ready()

    zero = gl.zeros([BD, R], gl.float32, mma)
    b_next = times_codes(b_x.index(z), b_c, zero, z)
    for i in gl.static_range(STAGES):
        b_share = b_next
        if i + 1 < STAGES:  # while one is written, the next is made
            b_next = times_codes(b_x.index(z + i + 1), b_c, zero, z)
            b_share = warpgroup_mma_wait(2, deps=[b_share])
        else:
            b_share = warpgroup_mma_wait(0, deps=[b_share])
        if SCALED:
            b_units, b_top = in_units(b_share * b_inverse[None, :])
            gl.store(p_shares + i * (BD * R), rounded(b_units))
            gl.store(p_top + i * BD, b_top)
        else:
            gl.store(p_shares + i * (BD * R), b_share)
    b_c._keep_alive()


@gluon.constexpr_function
def partial_sums_at_once(D, R, OWNERS, W):
    """Partial sums of the same entries that different threads add up: so many that each has 8 numbers of a partial
    sum.
    """
    return max(1, 256 * W // (D // OWNERS * R))


@gluon.constexpr_function
def rows_at_once(D, R, OWNERS, W):
    """Rows of D that a reducer adds up at a time: at most 32 numbers of them in a thread."""
    return min(D // OWNERS, 1024 * W // R)


@gluon.constexpr_function
def axis_layout(layout, AXIS):
    """What a range along one of the three axes of a layout has to be laid out as."""
    first, second = [axis for axis in (0, 1, 2) if axis != AXIS]
    return gl.SliceLayout(first, gl.SliceLayout(second, layout))


@gluon.jit
def along(AXIS: gl.constexpr, SIZE: gl.constexpr, layout: gl.constexpr):
    """0, 1, ... along one of the three axes of a layout, to be broadcast along the others."""
    o = gl.arange(0, SIZE, axis_layout(layout, AXIS))
    if AXIS == 0:
        o = o[:, None, None]
    elif AXIS == 1:
        o = o[None, :, None]
    else:
        o = o[None, None, :]
    return o


@gluon.jit
def ranges(layout: gl.constexpr, A: gl.constexpr, B: gl.constexpr, C: gl.constexpr):
    """Of an A x B x C tensor, the indices along each of its axes."""
    return along(0, A, layout), along(1, B, layout), along(2, C, layout)


@gluon.jit
def rows_above(o_t, ROWS: gl.constexpr, R: gl.constexpr):
    """Tiles of 4 rows and 2 columns, in the order of `fine_offset`: how many rows lie above tile t."""
    # in 4 rows there is half of every block
    return o_t * 0 if ROWS == 4 else o_t // R * 8 + o_t // 4 % 2 * 4


@gluon.jit
def first_column(o_t, ROWS: gl.constexpr, R: gl.constexpr):
    """And how many columns to its left."""
    return o_t * 2 if ROWS == 4 else o_t // 8 % (R // 8) * 8 + o_t % 4 * 2


@gluon.jit
def tile_offset(o_t, ROWS: gl.constexpr):
    """And how many numbers of a partial sum before it, from the first of these rows on."""
    return 64 * (o_t // 4) + 8 * (o_t % 4) if ROWS == 4 else 8 * o_t


@gluon.constexpr_function
def flat_layout(AT_ONCE, W):
    """Of AT_ONCE partial sums, T tiles, the 8 numbers of a tile as they lie: a tile is one thread's."""
    over_shares = min(W, AT_ONCE)
    return gl.BlockedLayout([1, 1, 8], [1, 32, 1], [over_shares, W // over_shares, 1], [2, 1, 0])


@gluon.constexpr_function
def tiled_layout(AT_ONCE, W):
    """The same threads, and the 8 numbers as 4 rows of 2 columns."""
    over_shares = min(W, AT_ONCE)
    return gl.BlockedLayout([1, 1, 4, 2], [1, 32, 1, 1], [over_shares, W // over_shares, 1, 1], [3, 2, 1, 0])


@gluon.jit
def add_partial_sums(
    p_shares, p_mass, p_top, of_shares, of_tops, of_masses, i_d, programs,
    D: gl.constexpr, R: gl.constexpr, ROWS: gl.constexpr, AT_ONCE: gl.constexpr, MOST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """X C^T of ROWS rows of D from row i_d on, in T tiles, and C 1 of their columns; AT_ONCE sums each, to be added up.

    ->   AT_ONCE T 4 2,  AT_ONCE T 2

    Indices of a program, a tile, and: of_shares, an entry of it as it lies; of_tops, a row of it; of_masses, a column
    of it. MOST is a power of two, not below `programs`: what a thread reads is asked for all at once.
    """
    SCALED: gl.constexpr = p_shares.dtype.element_ty == gl.int16
    T: gl.constexpr = ROWS * R // 8
    tile: gl.constexpr = tiled_layout(AT_ONCE, W)
    f_p, f_t, f_e = of_shares
    r_p, r_t, r_i = of_tops
    c_p, c_t, c_j = of_masses
    # fine_offset(i_d, 0), seen to be a multiple of 8: 16 bytes at a time
    o_e = i_d // 8 * (8 * R) + i_d % 8 * 8 + tile_offset(f_t, ROWS)
    b_xc = gl.zeros([AT_ONCE, T, 4, 2], gl.float32, tile)
    b_mass = gl.zeros([AT_ONCE, T, 2], gl.float32, gl.SliceLayout(2, tile))
    for j in gl.static_range(0, MOST, AT_ONCE):
        # AT_ONCE T 8
        p_its = p_shares + (j + f_p) * (D * R) + o_e + f_e
        b_share = gl.load(p_its, mask=j + f_p < programs, other=0, cache_modifier=".cg")
        b_share = gl.convert_layout(b_share.to(gl.float32).reshape([AT_ONCE, T, 4, 2]), tile, assert_trivial=True)
        # AT_ONCE T 2
        p_its = p_mass + (j + c_p) * R + first_column(c_t, ROWS, R) + c_j
        b_its = gl.load(p_its, mask=j + c_p < programs, other=0.0, cache_modifier=".cg")
        if SCALED:
            # AT_ONCE T 4
            p_its = p_top + (j + r_p) * D + i_d + rows_above(r_t, ROWS, R) + r_i
            b_top = gl.load(p_its, mask=j + r_p < programs, other=0.0, cache_modifier=".cg")
            b_its, b_width = unpack_mass(b_its)
            b_share = b_share * (b_width[:, :, None, :] * b_top[:, :, :, None])
        b_xc += b_share
        b_mass += b_its
    return b_xc, b_mass


@gluon.jit
def update_centroids(
    p_shares, p_mass, p_top, p_d, p_copy, p_squares, d, r, programs, i_p, last,
    D: gl.constexpr, R: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """A reducer's rows of D = X C^T diag(C 1)^-1, ROWS at a time: in halves to p_copy, in float32 to p_d where `last`.

    All in registers, in T tiles of 4 rows and 2 columns, each of which lies together in a partial sum.
    Offsets: o_ of the rows of D, q_ of their squares.
    """
    AT_ONCE: gl.constexpr = partial_sums_at_once(D, R, OWNERS, W)
    ROWS: gl.constexpr = rows_at_once(D, R, OWNERS, W)
    T: gl.constexpr = ROWS * R // 8
    tile: gl.constexpr = tiled_layout(AT_ONCE, W)
    out: gl.constexpr = gl.SliceLayout(0, tile)
    squares: gl.constexpr = gl.SliceLayout(1, out)  # T 2
    of_shares = ranges(flat_layout(AT_ONCE, W), AT_ONCE, T, 8)
    of_tops = ranges(gl.SliceLayout(3, tile), AT_ONCE, T, 4)
    of_masses = ranges(gl.SliceLayout(2, tile), AT_ONCE, T, 2)
    o_t, o_i, o_j = ranges(out, T, 4, 2)
    q_t = gl.arange(0, T, gl.SliceLayout(1, squares))[:, None]
    q_j = gl.arange(0, 2, gl.SliceLayout(0, squares))[None, :]
    for i in range(D // OWNERS // ROWS):
        i_d = i_p * (D // OWNERS) + i * ROWS
        b_xc, b_mass = add_partial_sums(
            p_shares, p_mass, p_top, of_shares, of_tops, of_masses, i_d, programs, D, R, ROWS, AT_ONCE, MOST, W
        )  # fmt: skip
        b_total = gl.convert_layout(gl.sum(b_mass, axis=0), squares)
        b_new = gl.sum(b_xc, axis=0) / (b_total[:, None, :] + EPS)
        o_d = i_d + rows_above(o_t, ROWS, R) + o_i
        o_r = first_column(o_t, ROWS, R) + o_j
        if last:
            gl.store(p_d + o_d * r + o_r, b_new, mask=(o_d < d) & (o_r < r))
        store_halves(p_copy, o_d, o_r, b_new, D, R)
        p_its = p_squares + (i_d + rows_above(q_t, ROWS, R)) // 4 * R + first_column(q_t, ROWS, R) + q_j
        gl.store(p_its, gl.sum(b_new * b_new, axis=1))
