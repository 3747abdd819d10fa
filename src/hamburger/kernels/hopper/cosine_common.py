"""D to the digits of a cold softmax, in Gluon: each number as a bfloat16 and what is left of it, its two halves.

At a temperature of 0.01 the ninth bit of a cosine is another cluster, so bfloat16 alone will not do. Here are what
makes halves of D, and products with both of them; pieces of VQ and CD in one launch and in one pass over X.

In one launch D does not fit next to X in shared memory. It passes through in stages of BD rows, from `copy`, where it
lies in global memory: 2 D R, the first halves and then the second.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger import linalg
from hamburger.kernels.hopper.common import load_bases_at_once, ready, threads_meet
from hamburger.kernels.hopper.layouts import SWIZZLED, product_layout, row_layout, tile_layout

EPS = gl.constexpr(linalg.EPS)
TINY = gl.constexpr(1.1754943508222875e-38)  # the least normal float32


@gluon.constexpr_function
def stage_rows(R):
    """Rows of D in a stage: 16 KB of each half."""
    return 8192 // R


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
def store_halves(p_copy, o_d, o_r, b_new, D: gl.constexpr, R: gl.constexpr):
    """A part of D, for everybody to read.   copy: 2 D R"""
    b_high = b_new.to(gl.bfloat16)
    gl.store(p_copy + o_d * R + o_r, b_high)
    gl.store(p_copy + D * R + o_d * R + o_r, rest(b_new, b_high))


@gluon.jit
def publish_initial_bases(
    p_initial, p_copy, p_squares, d, r, i_p,
    D: gl.constexpr, R: gl.constexpr, OWNERS: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """A reducer brings its rows of the first D into the form that every later D has.   initial: d r in float32"""
    ROWS: gl.constexpr = min(D // OWNERS, 32)
    # 4 rows in a thread: were two squares added by two threads, each would round its own and not the other
    ld_d: gl.constexpr = gl.BlockedLayout([4, R // 32], [1, 32], [W, 1], [1, 0])
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))[None, :]
    o_q = gl.arange(0, ROWS // 4, gl.SliceLayout(1, ld_d))[:, None]
    for i in range(D // OWNERS // ROWS):
        i_d = i_p * (D // OWNERS) + i * ROWS
        o_d = i_d + gl.arange(0, ROWS, gl.SliceLayout(1, ld_d))[:, None]
        # ROWS R
        b_d = gl.load(p_initial + o_d * r + o_r, mask=(o_d < d) & (o_r < r), other=0.0)
        store_halves(p_copy, o_d, o_r, b_d, D, R)
        # only the sum of all squares is ever asked for: that of these rows goes into the first of their places
        b_squares = gl.where(o_q == 0, gl.sum(b_d * b_d, axis=0)[None, :], 0.0)
        gl.store(p_squares + (i_d // 4 + o_q) * R + o_r, b_squares)


@gluon.jit
def norms_of(p_squares, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """|d| of each basis, from its squares over four rows each.   squares: D/4 R   ->   R"""
    ld_q: gl.constexpr = row_layout(R, 4, W)
    o_q = gl.arange(0, D // 4, gl.SliceLayout(1, ld_q))
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_q))
    return gl.sqrt(gl.sum(gl.load(p_squares + o_q[:, None] * R + o_r[None, :], cache_modifier=".cg"), axis=0))


@gluon.jit
def load_stage(p_half, i, BD: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """The rows of one half of D in stage i. Others wrote them: past L1.   half: D R   ->   BD R"""
    ld_d: gl.constexpr = row_layout(R, 8, W)
    o_d = i * BD + gl.arange(0, BD, gl.SliceLayout(1, ld_d))
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))
    return gl.load(p_half + o_d[:, None] * R + o_r[None, :], cache_modifier=".cg")


@gluon.jit
def load_stage_halves(p_copy, i, BD: gl.constexpr, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """Both halves of stage i.   ->   BD R, twice"""
    return load_stage(p_copy, i, BD, R, W), load_stage(p_copy + D * R, i, BD, R, W)


@gluon.constexpr_function
def stages_ahead(STAGES):
    """Stages that are asked for before the first is used: as many as registers have room for."""
    return min(4, STAGES)


@gluon.jit
def add_gram(b_gram, b_high, b_low, FIRST: gl.constexpr):
    """b_gram + D^T D of some rows of D, under way, but for the product of the lower halves.   high, low: rows R"""
    b_gram = warpgroup_mma(b_high.permute([1, 0]), b_high, b_gram, use_acc=not FIRST, is_async=True)
    b_gram = warpgroup_mma(b_high.permute([1, 0]), b_low, b_gram, is_async=True)
    return warpgroup_mma(b_low.permute([1, 0]), b_high, b_gram, is_async=True)


@gluon.jit
def wait_for_products(b_xd, b_gram, PENDING: gl.constexpr, GRAM: gl.constexpr):
    """Until no more than the last PENDING products are under way."""
    if GRAM:
        b_xd, b_gram = warpgroup_mma_wait(PENDING, deps=[b_xd, b_gram])
    else:
        b_xd = warpgroup_mma_wait(PENDING, deps=[b_xd])
    return b_xd, b_gram


@gluon.jit
def project_fine(
    p_copy, p_squares, b_x, z,
    GRAM: gl.constexpr, D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """X^T D with both halves of D, where GRAM also D^T D, and |d| of each basis.   x: D/BD BD BN   ->   BN R,  R R,  R

    Two stages of D have room in shared memory: products read one while the other is filled. As much of D as registers
    have room for is asked for before anything else is done: its way from L2 is what takes time here.
    """
    BD: gl.constexpr = stage_rows(R)
    STAGES: gl.constexpr = D // BD
    AHEAD: gl.constexpr = stages_ahead(STAGES)
    PRODUCTS: gl.constexpr = 5 if GRAM else 2  # of one stage
    b_high = gl.allocate_shared_memory(gl.bfloat16, [2, BD, R], SWIZZLED)
    b_low = gl.allocate_shared_memory(gl.bfloat16, [2, BD, R], SWIZZLED)
    tiles = ()
    for i in gl.static_range(AHEAD):
        tiles += (load_stage_halves(p_copy, i, BD, D, R, W),)
    b_norm = norms_of(p_squares, D, R, W)
    b_xd = gl.zeros([BN, R], gl.float32, product_layout(BN, R, W))
    b_gram = gl.zeros([R, R], gl.float32, product_layout(64, R, W))
    for i in gl.static_range(STAGES):
        if i >= 2:  # its memory is free when all warps are past the products of the stage before the last
            b_xd, b_gram = wait_for_products(b_xd, b_gram, PRODUCTS, GRAM)
            threads_meet()
        b_rows = b_x.index(z + i).permute([1, 0])
        b_h, b_l = b_high.index(z + i % 2), b_low.index(z + i % 2)
        b_h.store(tiles[i][0])
        b_l.store(tiles[i][1])
        if i + AHEAD < STAGES:
            tiles += (load_stage_halves(p_copy, i + AHEAD, BD, D, R, W),)
        ready()
        b_xd = warpgroup_mma(b_rows, b_h, b_xd, use_acc=i > 0, is_async=True)
        b_xd = warpgroup_mma(b_rows, b_l, b_xd, is_async=True)
        if GRAM:
            b_gram = add_gram(b_gram, b_h, b_l, i == 0)
    b_xd, b_gram = wait_for_products(b_xd, b_gram, 0, GRAM)
    threads_meet()
    b_high._keep_alive()  # the compiler takes the start of a buffer's last product for the end of its use
    b_low._keep_alive()
    return b_xd, b_gram, b_norm


@gluon.jit
def write_streamed_product(
    b_codes, p_copy, p_y, d, n, s_yd, s_yn, i_p,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Y = D C, which is rounded to bfloat16 at once: the first half of D will do.   codes: BN R, bfloat16

    Y goes by way of shared memory, so that whole lines are written; X is no longer needed there.
    """
    BD: gl.constexpr = stage_rows(R)
    STAGES: gl.constexpr = D // BD
    AHEAD: gl.constexpr = stages_ahead(STAGES)
    ld_y: gl.constexpr = tile_layout(BD, BN, N_FAST, W)
    b_c = gl.allocate_shared_memory(gl.bfloat16, [BN, R], SWIZZLED)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [2, BD, R], SWIZZLED)
    b_y = gl.allocate_shared_memory(gl.bfloat16, [2, BD, BN], SWIZZLED)
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
