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
    fence_shared,
    load_bases_at_once,
    load_columns,
    load_partial_sums,
    load_piece_async,
    load_tile_async,
    own_codes,
    partial_sum_layout,
    product_layout,
    row_layout,
    softmax,
    store_rows,
    store_sums,
    strides_of_tile,
    thread_barrier,
    tile_at,
    tile_layout,
    wait,
    zero_of,
)

EPS = gl.constexpr(linalg.EPS)
TINY = gl.constexpr(1.1754943508222875e-38)  # the least normal float32


@gluon.jit
def rest(b_value, b_high):
    """The low half of a float32: the remainder after its high half, in bfloat16."""
    return (b_value - b_high.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def inverse_norms(b_xx):
    """1 / |x|, 0 for a zero column.   b_xx: |x|^2"""
    m_zero = b_xx < TINY
    return gl.where(m_zero, 0.0, gl.rsqrt(gl.where(m_zero, 1.0, b_xx)))


@gluon.jit
def unit_scales(b_norm):
    """Factors that give bases unit length.   b_norm: |d|"""
    return 1.0 / gl.maximum(b_norm, EPS)


@gluon.jit
def unit_scales_again(b_norm, b_unit):
    """The factors for CD, which normalises centroids and normalises again for the cosine. Twice differs from once for
    an almost zero centroid.   b_unit: `unit_scales` of b_norm"""
    return b_unit / gl.maximum(b_norm * b_unit, EPS)


@gluon.jit
def split_bases(p_d, b_high, b_low, d, r, z, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """Load D into shared memory in halves.   d: d r, float32   high, low: D/64 64 R   ->   |d|^2 of each basis: R"""
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
    """b_xx (32 BN) plus the squares of a piece of X, 32 rows at a time.   b_rows: ROWS BN"""
    for i in gl.static_range(ROWS // 32):
        b_part = b_rows.slice(i * 32, 32, dim=0).load(b_xx.type.layout).to(gl.float32)
        b_xx += b_part * b_part
    return b_xx


@gluon.jit
def project_pieces(
    b_x, b_high, b_low, b_xx, zero, z,
    FIRST: gl.constexpr, ASYNC: gl.constexpr, PIECES: gl.constexpr,
):  # fmt: skip
    """Issue X^T D with both halves of D, piece by piece as X arrives; with FIRST and ASYNC add squares of X to xx.

    high, low: D/64 64 R   xx: 32 BN   ->   BN R, in flight,  xx
    """
    b_xd = zero
    for i in gl.static_range(PIECES):
        if ASYNC:
            async_copy.wait_group(PIECES - 1 - i)
            fence_shared()
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
    """Issue X C^T with both halves of C, added to the sums.   c: 2 BN R   ->   PIECES of ROWS R, in flight"""
    in_flight = ()
    for i in gl.static_range(PIECES):
        b_sum = warpgroup_mma(b_x.index(i + z), b_c.index(z), b_sums[i], is_async=True)
        b_sum = warpgroup_mma(b_x.index(i + z), b_c.index(1 + z), b_sum, is_async=True)
        in_flight += (b_sum,)
    return in_flight


@gluon.jit
def finish_sums(
    in_flight, p_x, b_x, d, width, s_xd, s_xn, i_next,
    ASYNC: gl.constexpr, PIECES: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Wait for the products of `add_to_sums`.   ->   PIECES of ROWS R

    With ASYNC, each piece that is free is refilled with the same piece of tile i_next.
    """
    b_sums = ()
    for i in gl.static_range(PIECES):
        b_sums += (warpgroup_mma_wait(2 * (PIECES - 1 - i), deps=[in_flight[i]]),)
        if ASYNC:
            thread_barrier()
            load_piece_async(p_x, b_x, d, width, s_xd, s_xn, i_next, i, BN, W)
    return b_sums


@gluon.jit
def write_staged_product(
    b_d, b_c, b_stage, p_y, d, n, s_yd, s_yn, i_t,
    D: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Write Y = D C through shared memory, so that stores are coalesced.   d: D/64 64 R   c: BN R   stage: 2 64 BN"""
    ld_y: gl.constexpr = tile_layout(64, BN, N_FAST, W)
    zero = gl.zeros([64, BN], gl.float32, product_layout(64, BN, W))
    o_n = i_t * BN + gl.arange(0, BN, gl.SliceLayout(0, ld_y)).to(gl.int64)
    for i in gl.static_range(D // 64):
        b_rows = warpgroup_mma(b_d.index(i), b_c.permute([1, 0]), zero, use_acc=False)
        b_stage.index(i % 2).store(b_rows.to(b_stage.dtype))
        thread_barrier()
        store_rows(b_stage.index(i % 2), p_y, o_n, i * 64, d, n, s_yd, s_yn, 64, ld_y)


@gluon.jit
def take_bases(
    p_d, b_high, b_low, d, r, z,
    CENTROIDS: gl.constexpr, D: gl.constexpr, R: gl.constexpr, mma: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Load D into shared memory in halves; return the factors that give its columns unit length: R

    d: d r in float32   high, low: D/64 64 R   CENTROIDS: D holds CD's centroids, not normalised (`unit_scales_again`)
    """
    b_norm = gl.sqrt(split_bases(p_d, b_high, b_low, d, r, z, D, R, W))
    b_unit = unit_scales(b_norm)
    if CENTROIDS:
        b_unit = unit_scales_again(b_norm, b_unit)
    return gl.convert_layout(b_unit, gl.SliceLayout(0, mma))


@gluon.jit
def run_step(
    p_x, p_scale, p_c, p_y, p_sums, b_x, b_high, b_low, b_c, b_unit,
    d, n, width, r, i_p, i_b, programs, tiles, step, temperature, s_xd, s_xn, s_yd, s_yn,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, READOUT: gl.constexpr, Y: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Write this program's partial sums over its tiles; with READOUT their codes instead, and with Y also D C.

    step: number of earlier steps. With ASYNC, the copy of the first tile is in flight when it begins, and that of the
    next step when it ends.   scale: n, written if FIRST
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
            b_xx = load_columns(p_x, b_x, d, width, s_down, s_along, i_t, D, 64, ROWS, BN, N_FAST, W)
            fence_shared()
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
        if READOUT and ASYNC:  # there are no sums: X is free
            thread_barrier()
            load_tile_async(p_x, b_x, d, width, s_down, s_along, i_next, PIECES, BN, W)
        b_codes = softmax(b_xd * b_unit[None, :] * (b_scale / temperature)[:, None], m_r)
        b_codes = gl.where(m_c, b_codes, 0.0)  # a softmax beyond n is not zero
        b_first = b_codes.to(gl.bfloat16)
        b_c.index(z).store(b_first)
        if READOUT:
            gl.store(p_c + o_c, b_codes.to(p_c.dtype.element_ty), mask=m_c)
            if Y:
                b_stage = gl.allocate_shared_memory(gl.bfloat16, [2, 64, BN], SWIZZLED)
                fence_shared()
                s_y_down, s_y_along = strides_of_tile(s_yd, s_yn, z, N_FAST)
                write_staged_product(
                    b_high, b_c.index(0), b_stage, p_y, d, n, s_y_down, s_y_along, i_t, D, BN, N_FAST, W
                )  # fmt: skip
        else:
            b_c.index(1 + z).store(rest(b_codes, b_first))
            fence_shared()
            b_mass += b_codes
            in_flight = add_to_sums(b_sums, b_x, b_c, z, PIECES)
            b_sums = finish_sums(
                in_flight, p_x, b_x, d, width, s_down, s_along, i_next, ASYNC, PIECES, BN, W
            )  # fmt: skip
        thread_barrier()  # the buffers of X and C are free
    if not READOUT:
        z = zero_of(i_p)
        p_own = p_sums + (i_b * programs + i_p + z) * ((D + 1) * R)
        for i in gl.static_range(PIECES):
            store_sums(p_own, b_sums[i], z + i * ROWS, D, R)
        gl.store(p_own + D * R + gl.arange(0, R, gl.SliceLayout(0, mma)), gl.sum(b_mass, axis=0))


@gluon.jit
def update_rows(p_sums, p_d, d, r, programs, i_u, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """D = X C^T diag(C 1)^-1 for four rows, from row 4 i_u on: adds the partial sums of all programs in order.

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
    first, d, n, width, r, steps, programs, temperature, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_count,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, ASYNC: gl.constexpr,
    FIRST: gl.constexpr, CENTROIDS: gl.constexpr, READOUT: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """All steps; with READOUT the last codes instead, and with Y also D C. Grid: programs, images from `first`.

    A program owns every `programs`-th tile of BN columns and every `programs`-th four rows of D; it has at least one
    tile. It keeps X C^T and C 1 of all its tiles in registers in float32, so X is read once per step and only the last
    codes are written. Shared memory holds both halves of D, one tile of X and its codes. With ASYNC, as soon as the
    sums have used a piece of a tile, it is refilled from the next tile. A step has two grid barriers per image: before
    programs read partial sums (`sums`), and before they read D.

    x, y: b d n in bfloat16, any strides; x is read up to width, where it is zero from n on. initial, d: b d r in
    float32, D before and after. scale: b n, 1 / |x|. c: b n r. sums: b programs (D + 1) R in float32, X C^T above C 1.
    count: two counters per image, zero, s_count apart. FIRST: the read-out computes the scale. CENTROIDS: see
    `take_bases`; for all D but the first. Steps and read-out are two launches: one kernel for both spills.
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
        load_tile_async(p_x, b_x, d, width, s_xd, s_xn, i_p, PIECES, BN, W)
    b_unit = take_bases(p_initial + i_b * d * r, b_high, b_low, d, r, 0, False, D, R, mma, W)
    if READOUT:
        run_step(
            p_x, p_scale, p_c + i_b * n * r, p_y + i_b * s_yb, p_sums, b_x, b_high, b_low, b_c, b_unit,
            d, n, width, r, i_p, i_b, programs, tiles, 0, temperature, s_xd, s_xn, s_yd, s_yn,
            D, R, BN, N_FAST, ASYNC, FIRST, True, Y, W,
        )  # fmt: skip
    else:
        run_step(
            p_x, p_scale, p_x, p_x, p_sums, b_x, b_high, b_low, b_c, b_unit,
            d, n, width, r, i_p, i_b, programs, tiles, 0, temperature, s_xd, s_xn, s_xd, s_xn,
            D, R, BN, N_FAST, ASYNC, True, False, False, W,
        )  # fmt: skip
        for step in range(1, steps + 1):
            z = zero_of(step)  # else addresses would be kept in registers between steps
            i_bz = i_b + z
            p_own_count = p_count + i_bz * s_count
            arrive(p_own_count)
            wait(p_own_count, programs * step)
            p_new = p_d + i_bz * d * r
            p_parts = p_sums + i_bz * programs * ((D + 1) * R)
            for i_u in range(i_p, gl.cdiv(d, 4), programs):
                update_rows(p_parts, p_new, d, r, programs, i_u, D, R, W)
            if step < steps:
                arrive(p_own_count + 1)
                wait(p_own_count + 1, programs * step)
                b_unit = take_bases(p_new, b_high, b_low, d, r, z, CENTROIDS, D, R, mma, W)
                run_step(
                    p_x, p_scale, p_x, p_x, p_sums, b_x, b_high, b_low, b_c, b_unit,
                    d, n, width, r, i_p, i_b, programs, tiles, step, temperature, s_xd, s_xn, s_xd, s_xn,
                    D, R, BN, N_FAST, ASYNC, False, False, False, W,
                )  # fmt: skip
    if ASYNC:
        async_copy.wait_group(0)  # the copy of one more tile, which is not used
