"""Soft k-means by cosine in one launch, in Gluon: pieces that VQ and CD share. Letters: `hamburger.ops.wave_kernels`.

A program holds its columns of X in shared memory as in NMF. D does not fit beside them with the digits that a softmax
at a temperature of 0.01 needs, where the ninth bit of a cosine is another cluster: it passes through in stages of BD
rows, each number as a bfloat16 and what is left of it. For the same reason C enters X C^T as two bfloat16, and a share
of X C^T is written in float32, or in 16 bits with one scale for each row (`write_fine_sums`).

The first OWNERS programs own an equal number of rows of D each. After a sweep they alone add up the shares and write D;
the others wait for it.

In global memory, of each image:
- copy: 2 D R, bfloat16, the two halves of D
- shares: programs D R, of X C^T
- scratch, float32: programs R, of C 1 | programs D, the scales of a share's rows | D/4 R, |d|^2 over four rows each
- count: two counters, each in a line of its own. Those who have written their shares; owners who have written D.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.ops import cosine
from hamburger.ops.wave_kernels import arrive, ready, threads_meet, wait

EPS = gl.constexpr(cosine.EPS)
TINY = gl.constexpr(1.1754943508222875e-38)  # the least normal float32
FULL = gl.constexpr(32767.0)
MAGIC = gl.constexpr(12582912.0)  # 1.5 * 2^23: of |v| < 2^15 plus this, the lowest 16 bits are v rounded, an int16
EXPONENT = gl.constexpr(0x7F800000)  # its bits in a float32
NEW_D = gl.constexpr(16)  # where the second counter lies: not in the line of the first
COUNTERS = gl.constexpr(32)  # from one image to the next: `launch.COUNTS`


@gluon.constexpr_function
def product_layout(M, N, W):
    """Of an M x N product: warps along M as far as it has 16 rows for each, the others along N."""
    down = min(W, M // 16)
    instruction = [16, N // (W // down), 16]
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[down, W // down], instr_shape=instruction)


@gluon.constexpr_function
def row_layout(N, V, W):
    """Of rows of N contiguous numbers, V of them in a thread."""
    across = min(32, N // V)
    return gl.BlockedLayout([1, V], [32 // across, across], [W, 1], [1, 0])


@gluon.constexpr_function
def stage_rows(R):
    """Rows of D in a stage: 16 KB of each half."""
    return 8192 // R


@gluon.jit
def scratch_of(p_scratch, i_b, programs, D: gl.constexpr, R: gl.constexpr):
    """->   where its three parts begin: mass, top, squares"""
    p_mass = p_scratch + i_b * (programs * (R + D) + D // 4 * R)
    p_top = p_mass + programs * R
    return p_mass, p_top, p_top + programs * D


@gluon.jit
def inverse_norms(b_xx):
    """1 / |x|, 0 for a zero column, which has no direction."""
    m_zero = b_xx < TINY
    return gl.where(m_zero, 0.0, gl.rsqrt(gl.where(m_zero, 1.0, b_xx)))


@gluon.jit
def store_halves(p_copy, o_d, o_r, b_new, D: gl.constexpr, R: gl.constexpr):
    """A part of D, for everybody to read."""
    b_high = b_new.to(gl.bfloat16)
    gl.store(p_copy + o_d * R + o_r, b_high)
    gl.store(p_copy + D * R + o_d * R + o_r, (b_new - b_high.to(gl.float32)).to(gl.bfloat16))


@gluon.jit
def share_start(
    p_start, p_copy, p_squares, d, r, i_p, D: gl.constexpr, R: gl.constexpr, OWNERS: gl.constexpr, W: gl.constexpr
):  # fmt: skip
    """An owner brings its rows of the first D into the form that every later D has."""
    ROWS: gl.constexpr = min(D // OWNERS, 32)
    # 4 rows in a thread: were two squares added by two threads, each would round its own and not the other
    ld_d: gl.constexpr = gl.BlockedLayout([4, R // 32], [1, 32], [W, 1], [1, 0])
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))[None, :]
    o_q = gl.arange(0, ROWS // 4, gl.SliceLayout(1, ld_d))[:, None]
    for i in range(D // OWNERS // ROWS):
        i_d = i_p * (D // OWNERS) + i * ROWS
        o_d = i_d + gl.arange(0, ROWS, gl.SliceLayout(1, ld_d))[:, None]
        # ROWS R
        b_d = gl.load(p_start + o_d * r + o_r, mask=(o_d < d) & (o_r < r), other=0.0)
        store_halves(p_copy, o_d, o_r, b_d, D, R)
        # only the sum of all squares is ever asked for: that of these rows goes into the first of their places
        b_squares = gl.where(o_q == 0, gl.sum(b_d * b_d, axis=0)[None, :], 0.0)
        gl.store(p_squares + (i_d // 4 + o_q) * R + o_r, b_squares)


@gluon.jit
def load_stage(p_half, i, BD: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """The rows of one half of D in stage i. Others wrote them: past L1.   ->   BD R"""
    ld_d: gl.constexpr = row_layout(R, 8, W)
    o_d = i * BD + gl.arange(0, BD, gl.SliceLayout(1, ld_d))
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))
    return gl.load(p_half + o_d[:, None] * R + o_r[None, :], cache_modifier=".cg")


@gluon.jit
def norms_of(p_squares, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """|d| of each basis.   ->   R"""
    ld_q: gl.constexpr = row_layout(R, 4, W)
    o_q = gl.arange(0, D // 4, gl.SliceLayout(1, ld_q))
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_q))
    return gl.sqrt(gl.sum(gl.load(p_squares + o_q[:, None] * R + o_r[None, :], cache_modifier=".cg"), axis=0))


@gluon.jit
def project_fine(
    p_copy, p_squares, b_x, z,
    GRAM: gl.constexpr, D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """X^T D with both halves of D, where GRAM also D^T D, and |d| of each basis.   ->   BN R,  R R,  R

    A product reads its stage while the next one is filled. As much of D as registers have room for is asked for before
    anything else is done: its way from L2 is what takes time here.
    """
    BD: gl.constexpr = stage_rows(R)
    STAGES: gl.constexpr = D // BD
    AHEAD: gl.constexpr = 4 if STAGES > 4 else STAGES
    PENDING: gl.constexpr = 5 if GRAM else 2  # the products of one stage
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    b_high = gl.allocate_shared_memory(gl.bfloat16, [2, BD, R], swizzled)
    b_low = gl.allocate_shared_memory(gl.bfloat16, [2, BD, R], swizzled)
    tiles = ()
    for i in gl.static_range(AHEAD):
        tiles += (load_stage(p_copy, i, BD, R, W), load_stage(p_copy + D * R, i, BD, R, W))
    b_norm = norms_of(p_squares, D, R, W)
    b_xd = gl.zeros([BN, R], gl.float32, product_layout(BN, R, W))
    b_gram = gl.zeros([R, R], gl.float32, product_layout(64, R, W))
    for i in gl.static_range(STAGES):
        if i >= 2:  # its memory is free when all warps are past the products of the stage before the last
            if GRAM:
                b_xd, b_gram = warpgroup_mma_wait(PENDING, deps=[b_xd, b_gram])
            else:
                b_xd = warpgroup_mma_wait(PENDING, deps=[b_xd])
            threads_meet()
        b_rows = b_x.index(z + i).permute([1, 0])
        b_h, b_l = b_high.index(z + i % 2), b_low.index(z + i % 2)
        b_h.store(tiles[2 * i])
        b_l.store(tiles[2 * i + 1])
        if i + AHEAD < STAGES:
            tiles += (load_stage(p_copy, i + AHEAD, BD, R, W), load_stage(p_copy + D * R, i + AHEAD, BD, R, W))
        ready()
        b_xd = warpgroup_mma(b_rows, b_h, b_xd, use_acc=i > 0, is_async=True)
        b_xd = warpgroup_mma(b_rows, b_l, b_xd, is_async=True)
        if GRAM:
            b_gram = warpgroup_mma(b_h.permute([1, 0]), b_h, b_gram, use_acc=i > 0, is_async=True)
            b_gram = warpgroup_mma(b_h.permute([1, 0]), b_l, b_gram, is_async=True)
            b_gram = warpgroup_mma(b_l.permute([1, 0]), b_h, b_gram, is_async=True)
    if GRAM:
        b_xd, b_gram = warpgroup_mma_wait(0, deps=[b_xd, b_gram])
    else:
        b_xd = warpgroup_mma_wait(0, deps=[b_xd])
    threads_meet()
    b_high._keep_alive()  # the compiler takes the start of a buffer's last product for the end of its use
    b_low._keep_alive()
    return b_xd, b_gram, b_norm


@gluon.jit
def softmax(b_s, m_r):
    """Over r, which is padded.   b_s: BN R   ->   BN R, zero in the padding"""
    b_s = gl.where(m_r, b_s, float("-inf"))
    b_e = gl.exp(b_s - gl.max(b_s, axis=1)[:, None])
    return b_e / gl.sum(b_e, axis=1)[:, None]


@gluon.jit
def assign(
    p_copy, p_squares, b_x, b_scale, m_n, m_r, centroids, z,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Codes: softmax over r of cosine(D, X) / T, zero beyond n and r.   scale: BN, 1 / (|x| T)   ->   BN R

    CD's bases are centroids of unit length, but only the last are stored so: `centroids` scales for both, one after the
    other, which differs from once where a centroid is all but zero.
    """
    b_xd, _, b_norm = project_fine(p_copy, p_squares, b_x, z, False, D, R, BN, W)
    b_unit = 1.0 / gl.maximum(b_norm, EPS)
    b_unit = gl.where(centroids, b_unit / gl.maximum(b_norm * b_unit, EPS), b_unit)
    b_unit = gl.convert_layout(b_unit, gl.SliceLayout(0, b_xd.type.layout))
    b_c = softmax(b_xd * b_unit[None, :] * b_scale[:, None], m_r)
    return gl.where(m_n & m_r, b_c, 0.0)


@gluon.jit
def fine_offset(o_d, o_r, R: gl.constexpr):
    """Where an element of a share lies: in blocks of 8 x 8, in them halves of 4 rows, in them columns two by two.

    The blocks are those of `block_offset`, and for the same reason. In them an owner's thread reads 4 rows of 2 columns
    at a time, so that it has to know the masses of two columns only.
    """
    return o_r % 2 + 2 * (o_d % 4) + 8 * (o_r % 8 // 2) + 32 * (o_d % 8 // 4) + 64 * (o_r // 8 + (R // 8) * (o_d // 8))


@gluon.jit
def write_fine_sums(
    b_codes, b_scale, b_x, p_shares, p_mass, p_top, z, i_p,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """This program's share of X C^T and of C 1, for the owners.   codes: BN R   scale: BN, 1 / (|x| T)

    Shares of int16 hold V with X C^T = V diag(width). The width of a column is sum_j c_j |x_j| T rounded to a power of
    two: it brings the columns of V to like sizes, whatever their masses and the norms of their x. Then a row of V in
    units of `top`, its largest entry / 32767, has most digits of float32 in half the bytes. The exponent of the width
    takes the place of the last 8 bits of the mass, which scales a column of D and no more.
    """
    SCALED: gl.constexpr = p_shares.dtype.element_ty == gl.int16
    BD: gl.constexpr = stage_rows(R)
    mma: gl.constexpr = product_layout(BD, R, W)
    across: gl.constexpr = gl.SliceLayout(0, mma)
    b_c = gl.allocate_shared_memory(gl.bfloat16, [2, BN, R], gl.NVMMASharedLayout(128, 16, 2))
    b_high = b_codes.to(gl.bfloat16)
    b_c.index(z).store(b_high)
    b_c.index(z + 1).store((b_codes - b_high.to(gl.float32)).to(gl.bfloat16))
    o_d = gl.arange(0, BD, gl.SliceLayout(1, mma))
    o_r = gl.arange(0, R, across)
    b_mass = gl.convert_layout(gl.sum(b_codes, axis=0), across)
    if SCALED:
        m_some = b_scale > 0.0
        b_length = gl.where(m_some, 1.0 / gl.where(m_some, b_scale, 1.0), 0.0)
        b_width = gl.convert_layout(gl.sum(b_codes * b_length[:, None], axis=0), across)
        b_width = gl.where(b_width > 1e-30, b_width, 0.0).to(gl.int32, bitcast=True) & EXPONENT
        b_packed = (b_mass.to(gl.int32, bitcast=True) + 128) & -256 | b_width >> 23
        # NaN among the columns of X makes NaN of every mass, and by way of the masses of all of D
        b_mass = gl.where(b_mass == b_mass, b_packed.to(gl.float32, bitcast=True), b_mass)
        b_inverse = gl.where(b_width > 0, 0x7F000000 - b_width, 0).to(gl.float32, bitcast=True)  # 1 / width
    gl.store(p_mass + i_p * R + o_r, b_mass)
    p_shares += i_p * (D * R) + fine_offset(o_d[:, None], o_r[None, :], R)
    p_top += i_p * D + o_d
    ready()

    zero = gl.zeros([BD, R], gl.float32, mma)
    b_next = warpgroup_mma(b_x.index(z), b_c.index(z), zero, use_acc=False, is_async=True)
    b_next = warpgroup_mma(b_x.index(z), b_c.index(z + 1), b_next, is_async=True)
    for i in gl.static_range(D // BD):
        b_share = b_next
        if i + 1 < D // BD:  # while one is written, the next is made
            b_next = warpgroup_mma(b_x.index(z + i + 1), b_c.index(z), zero, use_acc=False, is_async=True)
            b_next = warpgroup_mma(b_x.index(z + i + 1), b_c.index(z + 1), b_next, is_async=True)
            b_share = warpgroup_mma_wait(2, deps=[b_share])
        else:
            b_share = warpgroup_mma_wait(0, deps=[b_share])
        if SCALED:
            b_v = b_share * b_inverse[None, :]
            b_top = gl.max(gl.abs(b_v), axis=1) * (1.0 / FULL)
            m_top = b_top > TINY
            b_units = b_v * gl.where(m_top, 1.0 / gl.where(m_top, b_top, 1.0), 0.0)[:, None]
            gl.store(p_shares + i * (BD * R), (b_units + MAGIC).to(gl.int32, bitcast=True).to(gl.int16))
            gl.store(p_top + i * BD, b_top)
        else:
            gl.store(p_shares + i * (BD * R), b_share)
    b_c._keep_alive()


@gluon.constexpr_function
def shares_at_once(D, R, OWNERS, W):
    """Shares of the same entries that different threads add up: so many that each has 8 numbers of a share."""
    return max(1, 256 * W // (D // OWNERS * R))


@gluon.constexpr_function
def rows_at_once(D, R, OWNERS, W):
    """Rows of D that an owner adds up at a time: at most 32 numbers of them in a thread."""
    return min(D // OWNERS, 1024 * W // R)


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
def update_centroids(
    p_shares, p_mass, p_top, p_d, p_copy, p_squares, d, r, programs, i_p, last,
    D: gl.constexpr, R: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """An owner's rows of D = X C^T diag(C 1)^-1, shares in a fixed order. In float32 to p_d where `last`.

    Axes: AT_ONCE shares, T tiles, 4 rows of a tile, 2 columns of it. Offsets: f_ of shares as they lie, r_ of scales of
    rows, c_ of masses of columns, o_ of the rows of D, q_ of their squares. MOST is a power of two, not below
    `programs`: what a thread reads is asked for all at once.
    """
    SCALED: gl.constexpr = p_shares.dtype.element_ty == gl.int16
    AT_ONCE: gl.constexpr = shares_at_once(D, R, OWNERS, W)
    ROWS: gl.constexpr = rows_at_once(D, R, OWNERS, W)
    T: gl.constexpr = ROWS * R // 8
    WP: gl.constexpr = min(W, AT_ONCE)
    flat: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 32, 1], [WP, W // WP, 1], [2, 1, 0])
    tile: gl.constexpr = gl.BlockedLayout([1, 1, 4, 2], [1, 32, 1, 1], [WP, W // WP, 1, 1], [3, 2, 1, 0])
    row: gl.constexpr = gl.SliceLayout(3, tile)  # AT_ONCE T 4
    col: gl.constexpr = gl.SliceLayout(2, tile)  # AT_ONCE T 2
    out: gl.constexpr = gl.SliceLayout(0, tile)  # T 4 2
    f_p = gl.arange(0, AT_ONCE, gl.SliceLayout(1, gl.SliceLayout(2, flat)))[:, None, None]
    f_t = gl.arange(0, T, gl.SliceLayout(0, gl.SliceLayout(2, flat)))[None, :, None]
    f_e = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, flat)))[None, None, :]
    r_p = gl.arange(0, AT_ONCE, gl.SliceLayout(1, gl.SliceLayout(2, row)))[:, None, None]
    r_t = gl.arange(0, T, gl.SliceLayout(0, gl.SliceLayout(2, row)))[None, :, None]
    r_i = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, row)))[None, None, :]
    c_p = gl.arange(0, AT_ONCE, gl.SliceLayout(1, gl.SliceLayout(2, col)))[:, None, None]
    c_t = gl.arange(0, T, gl.SliceLayout(0, gl.SliceLayout(2, col)))[None, :, None]
    c_j = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, col)))[None, None, :]
    o_t = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, out)))[:, None, None]
    o_i = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(2, out)))[None, :, None]
    o_j = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, out)))[None, None, :]
    q_t = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(1, out)))[:, None]
    q_j = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, out)))[None, :]

    for i in range(D // OWNERS // ROWS):
        i_d = i_p * (D // OWNERS) + i * ROWS
        o_e = i_d // 8 * (8 * R) + i_d % 8 * 8  # fine_offset(i_d, 0), seen to be a multiple of 8: 16 bytes at a time
        if ROWS == 4:
            o_e += 64 * (f_t // 4) + 8 * (f_t % 4)
        else:
            o_e += 8 * f_t
        b_xc = gl.zeros([AT_ONCE, T, 4, 2], gl.float32, tile)
        b_mass = gl.zeros([AT_ONCE, T, 2], gl.float32, col)
        for j in gl.static_range(0, MOST, AT_ONCE):
            # AT_ONCE T 8
            b_share = gl.load(
                p_shares + (j + f_p) * (D * R) + o_e + f_e, mask=j + f_p < programs, other=0, cache_modifier=".cg"
            )
            b_share = gl.convert_layout(b_share.to(gl.float32).reshape([AT_ONCE, T, 4, 2]), tile, assert_trivial=True)
            # AT_ONCE T 2
            p_its = p_mass + (j + c_p) * R + first_column(c_t, ROWS, R) + c_j
            b_its = gl.load(p_its, mask=j + c_p < programs, other=0.0, cache_modifier=".cg")
            if SCALED:
                # AT_ONCE T 4
                p_its = p_top + (j + r_p) * D + i_d + rows_above(r_t, ROWS, R) + r_i
                b_top = gl.load(p_its, mask=j + r_p < programs, other=0.0, cache_modifier=".cg")
                b_bits = b_its.to(gl.int32, bitcast=True)
                b_its = (b_bits & -256).to(gl.float32, bitcast=True)
                b_width = (b_bits << 23 & EXPONENT).to(gl.float32, bitcast=True)
                b_share = b_share * (b_width[:, :, None, :] * b_top[:, :, :, None])
            b_xc += b_share
            b_mass += b_its
        b_total = gl.convert_layout(gl.sum(b_mass, axis=0), gl.SliceLayout(1, out))
        b_new = gl.sum(b_xc, axis=0) / (b_total[:, None, :] + EPS)
        o_d = i_d + rows_above(o_t, ROWS, R) + o_i
        o_r = first_column(o_t, ROWS, R) + o_j
        if last:
            gl.store(p_d + o_d * r + o_r, b_new, mask=(o_d < d) & (o_r < r))
        store_halves(p_copy, o_d, o_r, b_new, D, R)
        p_its = p_squares + (i_d + rows_above(q_t, ROWS, R)) // 4 * R + first_column(q_t, ROWS, R) + q_j
        gl.store(p_its, gl.sum(b_new * b_new, axis=1))


@gluon.jit
def move_bases(
    b_codes, b_scale, b_x, p_shares, p_mass, p_top, p_d, p_copy, p_squares, p_count,
    d, r, step, steps, programs, z, i_p,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Each basis to the mean of its columns. An owner returns when its own rows are written, others sooner."""
    write_fine_sums(b_codes, b_scale, b_x, p_shares, p_mass, p_top, z, i_p, D, R, BN, W)
    arrive(p_count)
    if i_p < OWNERS:
        wait(p_count, programs * (step + 1))
        update_centroids(
            p_shares, p_mass, p_top, p_d, p_copy, p_squares, d, r, programs, i_p, step == steps - 1,
            D, R, OWNERS, MOST, W,
        )  # fmt: skip
        arrive(p_count + NEW_D)


@gluon.jit
def wait_for_bases(p_count, step, OWNERS: gl.constexpr):
    """Until all rows of D are those of this step; the first D is step 0."""
    wait(p_count + NEW_D, OWNERS * (step + 1))


@gluon.jit
def write_streamed_product(
    b_codes, p_copy, p_y, d, n, s_yd, s_yn, i_p,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Y = D C, which is rounded to bfloat16 at once: the first half of D will do.   codes: BN R, bfloat16"""
    BD: gl.constexpr = stage_rows(R)
    STAGES: gl.constexpr = D // BD
    AHEAD: gl.constexpr = 4 if STAGES > 4 else STAGES
    columns: gl.constexpr = gl.BlockedLayout([8, 1], [BD // 8, 256 // BD], [1, W], [0, 1])
    ld_y: gl.constexpr = row_layout(BN, 8, W) if N_FAST else columns
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    b_c = gl.allocate_shared_memory(gl.bfloat16, [BN, R], swizzled)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [2, BD, R], swizzled)
    b_y = gl.allocate_shared_memory(gl.bfloat16, [2, BD, BN], swizzled)
    zero = gl.zeros([BD, BN], gl.float32, product_layout(BD, BN, W))
    o_n = (i_p * BN + gl.arange(0, BN, gl.SliceLayout(0, ld_y))).to(gl.int64)
    tiles = ()
    for i in gl.static_range(AHEAD):
        tiles += (load_stage(p_copy, i, BD, R, W),)
    threads_meet()
    b_c.store(b_codes)
    for i in gl.static_range(STAGES):
        b_d.index(i % 2).store(tiles[i])
        if i + AHEAD < STAGES:
            tiles += (load_stage(p_copy, i + AHEAD, BD, R, W),)
        ready()
        b_rows = warpgroup_mma(b_d.index(i % 2), b_c.permute([1, 0]), zero, use_acc=False)
        b_y.index(i % 2).store(b_rows.to(gl.bfloat16))
        threads_meet()
        o_d = (i * BD + gl.arange(0, BD, gl.SliceLayout(1, ld_y))).to(gl.int64)
        # BD BN
        m_y = (o_d < d)[:, None] & (o_n < n)[None, :]
        gl.store(p_y + o_d[:, None] * s_yd + o_n[None, :] * s_yn, b_y.index(i % 2).load(ld_y), mask=m_y)
