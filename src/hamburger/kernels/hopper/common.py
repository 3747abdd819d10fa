"""Gluon functions that the Hopper kernels share: layouts, barriers, loads of X and D, partial sums.

Names as in `hamburger.kernels.common`; here a b_ may also be in shared memory. All programs of a launch run at once and
wait for each other. Sums over positions go through global memory: each program writes its partial sums, and after a
grid barrier each program adds up the partial sums of some rows, in the order of the programs.

What orders accesses: `arrive` and `wait` between programs, by counters in global memory that only grow;
`thread_barrier` between the threads of a program; `fence_shared` before tensor cores read shared memory that threads
wrote. A product or copy "in flight" has been issued: its operands must not change until it is waited for.

NMF stores partial sums in blocks of 8 x 8 or 8 x 4: what a warp holds of a product is then contiguous, and a unit of
few columns fills whole memory sectors.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

# all three were renamed after Triton 3.6
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
load_async = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
_shared = gl.shared_memory_descriptor
reinterpret = _shared._reinterpret if hasattr(_shared, "_reinterpret") else _shared.reinterpret


# -- layouts -----------------------------------------------------------------------------------------------------------
# Which thread of a program holds which entries of a tile, and how a tile is stored in shared memory. W is the number of
# warps. A thread that holds eight neighbouring bfloat16 moves 16 bytes at a time.


# The layout of every bfloat16 tile in shared memory that tensor cores read.
SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


@gluon.constexpr_function
def product_layout(M, N, W):
    """Layout of an M x N product: warps along M while each has 16 rows, the others along N."""
    down = min(W, M // 16)
    instruction = [16, N // (W // down), 16]
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[down, W // down], instr_shape=instruction)


@gluon.constexpr_function
def row_layout(N, V, W):
    """Layout of rows of N contiguous entries, V of them per thread."""
    across = min(32, N // V)
    return gl.BlockedLayout([1, V], [32 // across, across], [W, 1], [1, 0])


@gluon.constexpr_function
def tile_layout(M, N, N_FAST, W):
    """Layout of an M x N tile of X or Y: eight neighbours per thread, along n if N_FAST, else along d."""
    if N_FAST:
        return row_layout(N, 8, W)
    return gl.BlockedLayout([8, 1], [M // 8, 256 // M], [1, W], [0, 1])


# -- order between programs and threads --------------------------------------------------------------------------------


@gluon.jit
def arrive(p_count):
    """Signal the other programs that everything this one wrote can be read."""
    thread_barrier()
    gl.atomic_add(p_count, 1, sem="release", scope="gpu")


@gluon.jit
def missing(p_count, target):
    """Whether fewer than `target` programs have arrived. Contains a thread barrier; all threads get the same answer.

    Only the first warp polls, so that arrivals do not queue behind loads. Its load acquires: what was written before
    the counter was raised is visible, to the other warps after the barrier.
    """
    return gl.inline_asm_elementwise(
        """
        {
        .reg .pred first, less;
        .reg .b32 seen;
        mov.u32 seen, %tid.x;
        setp.lt.u32 first, seen, 32;
        mov.b32 seen, $2;
        @first ld.acquire.gpu.global.b32 seen, [$1];
        setp.lt.s32 less, seen, $2;
        bar.red.or.pred less, 0, less;
        selp.b32 $0, 1, 0, less;
        }
        """,
        "=r,l,r", [p_count, target], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def wait(p_count, target):
    """Wait until `target` programs have arrived. All run at once: the launch is cooperative, or fails."""
    while missing(p_count, target) != 0:
        pass


@gluon.jit
def zero_of(step):
    """A zero that the compiler cannot fold, to add to addresses.

    Else it would compute all addresses before the first step and spill them. It does see a multiple of 128, so that
    addresses stay aligned.
    """
    return 128 * gl.inline_asm_elementwise("mov.u32 $0, 0;", "=r,r", [step], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def fence_shared():
    """Make what threads stored to shared memory visible to tensor cores. Contains a thread barrier."""
    fence_async_shared()
    thread_barrier()


@gluon.jit
def block_offset(o_row, o_col, R: gl.constexpr, WIDE: gl.constexpr):
    """Offset of an element in a matrix of R columns that is stored in blocks of 8 x WIDE."""
    return o_col % WIDE + WIDE * (o_row % 8) + 8 * WIDE * (o_col // WIDE + (R // WIDE) * (o_row // 8))


@gluon.jit
def load_columns(
    p_x, b_x, d, width, s_xd, s_xn, i_t,
    D: gl.constexpr, BD: gl.constexpr, XD: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Load tile i_t of X (BN columns) into shared memory, zeros beyond d and width.   b_x: D/XD XD BN   ->   |x|^2: BN

    It passes through registers, BD rows at a time.
    """
    ld_x: gl.constexpr = tile_layout(BD, BN, N_FAST, W)
    b_xx = gl.zeros([BD, BN], gl.float32, ld_x)
    o_n = i_t * BN + gl.arange(0, BN, gl.SliceLayout(0, ld_x)).to(gl.int64)
    for i in gl.static_range(D // BD):
        o_d = i * BD + gl.arange(0, BD, gl.SliceLayout(1, ld_x)).to(gl.int64)
        # BD BN
        m_x = (o_d < d)[:, None] & (o_n < width)[None, :]
        x = gl.load(p_x + o_d[:, None] * s_xd + o_n[None, :] * s_xn, mask=m_x, other=0.0)
        b_x.index(i * BD // XD).slice(i * BD % XD, BD, dim=0).store(x)
        b_xx += x.to(gl.float32) * x.to(gl.float32)
    return gl.sum(b_xx, axis=0)


@gluon.jit
def load_columns_async(
    p_x, b_x, d, width, s_xd, s_xn, i_t, D: gl.constexpr, BN: gl.constexpr, W: gl.constexpr, ABOVE: gl.constexpr = 0
):  # fmt: skip
    """`load_columns` as an asynchronous copy of D rows at once: the compiler puts a barrier between two copies.

    b_x: D BN, the rows of X from ABOVE on. Copies eight neighbours of a row at a time: s_xn is 1, and width and the
    other strides are known to be multiples of 8.
    """
    ld_x: gl.constexpr = row_layout(BN, 8, W)
    o_d = ABOVE + gl.arange(0, D, gl.SliceLayout(1, ld_x)).to(gl.int64)
    o_n = i_t * BN + gl.arange(0, BN, gl.SliceLayout(0, ld_x)).to(gl.int64)
    # D BN
    m_x = (o_d < d)[:, None] & (o_n < width)[None, :]
    load_async(b_x, p_x + o_d[:, None] * s_xd + o_n[None, :] * s_xn, mask=m_x)
    async_copy.commit_group()


@gluon.jit
def softmax(b_s, m_r):
    """Softmax over r, which is padded.   b_s: BN R   m_r: 1 R   ->   BN R, zero in the padding"""
    b_s = gl.where(m_r, b_s, float("-inf"))
    b_e = gl.exp(b_s - gl.max(b_s, axis=1)[:, None])
    return b_e / gl.sum(b_e, axis=1)[:, None]


@gluon.jit
def write_sums(
    b_x, b_c, p_own, zero, z,
    D: gl.constexpr, BD: gl.constexpr, XD: gl.constexpr, R: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Write this program's partial sum of X C^T.   own: D R, in blocks"""
    mma: gl.constexpr = zero.type.layout
    o_d = gl.arange(0, BD, gl.SliceLayout(1, mma))
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))
    p_own += z + block_offset(o_d[:, None], o_r[None, :], R, WIDE)
    b_next = warpgroup_mma(b_x.index(z).slice(0, BD, dim=0), b_c, zero, use_acc=False, is_async=True)
    for i in gl.static_range(D // BD):
        b_share = warpgroup_mma_wait(0, deps=[b_next])
        if i + 1 < D // BD:  # the next product runs while this one is written
            b_rows = b_x.index((i + 1) * BD // XD + z).slice((i + 1) * BD % XD, BD, dim=0)
            b_next = warpgroup_mma(b_rows, b_c, zero, use_acc=False, is_async=True)
        gl.store(p_own + i * (BD * R), b_share.to(gl.bfloat16))


@gluon.constexpr_function
def partial_sum_layout(SIZE, W):
    """Layout of partial sums (programs x SIZE): two or more neighbours per thread, for as many programs as possible.

    A unit too small for all threads is read by groups of warps, each of which reads a part of the programs.
    """
    GROUPS = max(1, 64 * W // SIZE)
    return gl.BlockedLayout([1, max(2, SIZE // (32 * W))], [1, 32], [GROUPS, W // GROUPS], [1, 0])


@gluon.jit
def load_partial_sums(p_unit, i_p, programs, stride, o_unit, AT_ONCE: gl.constexpr, layout: gl.constexpr):
    """Load the partial sums of AT_ONCE programs from i_p on.   ->   AT_ONCE SIZE, as stored"""
    o_p = i_p + gl.arange(0, AT_ONCE, gl.SliceLayout(1, layout))
    p_share = p_unit + o_p[:, None] * stride + o_unit[None, :]
    return gl.load(p_share, mask=(o_p < programs)[:, None], other=0.0, cache_modifier=".cg")


@gluon.jit
def store_rows(b_rows, p_y, o_n, i_d, d, n, s_yd, s_yn, ROWS: gl.constexpr, ld_y: gl.constexpr):
    """Write rows of a tile of Y from shared memory, from row i_d on.   rows: ROWS BN   o_n: BN"""
    o_d = i_d + gl.arange(0, ROWS, gl.SliceLayout(1, ld_y)).to(gl.int64)
    # ROWS BN
    m_y = (o_d < d)[:, None] & (o_n < n)[None, :]
    gl.store(p_y + o_d[:, None] * s_yd + o_n[None, :] * s_yn, b_rows.load(ld_y), mask=m_y)


@gluon.jit
def write_product(
    b_d, b_c, b_x, p_y, d, n, s_yd, s_yn, i_t,
    D: gl.constexpr, XD: gl.constexpr, BN: gl.constexpr, N_FAST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Write tile i_t of Y = D C through the shared memory of X, so that stores are coalesced.

    d: D/64 64 R   c: BN R   x: D/XD XD BN, all in shared memory
    """
    ld_y: gl.constexpr = tile_layout(64, BN, N_FAST, W)
    zero = gl.zeros([64, BN], gl.float32, product_layout(64, BN, W))
    o_n = i_t * BN + gl.arange(0, BN, gl.SliceLayout(0, ld_y)).to(gl.int64)
    for i in gl.static_range(D // 64):
        b_rows = b_x.index(i * 64 // XD).slice(i * 64 % XD, 64, dim=0)
        b_rows.store(warpgroup_mma(b_d.index(i), b_c.permute([1, 0]), zero, use_acc=False).to(b_x.dtype))
        thread_barrier()
        store_rows(b_rows, p_y, o_n, i * 64, d, n, s_yd, s_yn, 64, ld_y)


# -- streaming pieces --------------------------------------------------------------------------------------------------
# A tile of X (BN columns) is in shared memory in pieces of ROWS rows: x is D/ROWS ROWS BN below.


ROWS = gl.constexpr(128)  # rows of X that are copied, multiplied and freed together


@gluon.jit
def column_range(step, i_p, programs, tiles):
    """First tile of a step and distance to the next: every other step runs backwards, to reuse X in the L2 cache.

    tiles: how many the program owns
    """
    back = step % 2
    return i_p + back * (tiles - 1) * programs, programs - 2 * back * programs


@gluon.jit
def tile_at(k, begin, way, tiles):
    """The k-th tile of a step. k may be up to two beyond the last: these are tiles of the next step, backwards."""
    return begin + way * gl.maximum(gl.minimum(k, 2 * tiles - 1 - k), 0)


@gluon.jit
def load_piece_async(p_x, b_x, d, width, s_xd, s_xn, i_t, i: gl.constexpr, BN: gl.constexpr, W: gl.constexpr):
    """Copy piece i of tile i_t of X asynchronously; zeros behind the last tile."""
    load_columns_async(p_x, b_x.index(i), d, width, s_xd, s_xn, i_t, ROWS, BN, W, i * ROWS)


@gluon.jit
def load_tile_async(
    p_x, b_x, d, width, s_xd, s_xn, i_t, PIECES: gl.constexpr, BN: gl.constexpr, W: gl.constexpr
):  # fmt: skip
    """Copy tile i_t of X asynchronously, piece after piece."""
    for i in gl.static_range(PIECES):
        load_piece_async(p_x, b_x, d, width, s_xd, s_xn, i_t, i, BN, W)


@gluon.jit
def load_bases_at_once(p_d, d, r, s_d, z, D: gl.constexpr, R: gl.constexpr, W: gl.constexpr):
    """Issue all loads of D at once, zeros beyond d and r.   ->   D/64 times 64 R

    Bypasses the L1 cache, because other programs may have written D.
    """
    ld_d: gl.constexpr = row_layout(R, 8, W)
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))
    tiles = ()
    for i in gl.static_range(D // 64):
        o_d = z + i * 64 + gl.arange(0, 64, gl.SliceLayout(1, ld_d))
        # 64 R
        m_d = (o_d < d)[:, None] & (o_r < r)[None, :]
        rows = gl.load(p_d + o_d[:, None] * s_d + o_r[None, :], mask=m_d, other=0.0, cache_modifier=".cg")
        tiles = tiles + (rows,)  # noqa: RUF005  Gluon does not unpack
    return tiles


@gluon.jit
def strides_of_tile(s_d, s_n, z, N_FAST: gl.constexpr):
    """Row and column stride; the one that is not 1 plus `zero_of` this tile.

    Else the addresses of all rows would be kept in registers from tile to tile.
    """
    if N_FAST:
        s_d += z
    else:
        s_n += z
    return s_d, s_n


@gluon.jit
def own_codes(i_t, n, r, BN: gl.constexpr, R: gl.constexpr, mma: gl.constexpr):
    """Offsets and mask of the codes of a tile.   ->   BN R, twice"""
    o_n = i_t * BN + gl.arange(0, BN, gl.SliceLayout(1, mma)).to(gl.int64)
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))
    return o_n[:, None] * r + o_r[None, :], (o_n < n)[:, None] & (o_r < r)[None, :]


@gluon.jit
def store_sums(p_own, b_sum, first, d, r):
    """Write rows of a d x r matrix in float32, from row `first` on.   b_sum: rows R"""
    layout: gl.constexpr = b_sum.type.layout
    o_d = first + gl.arange(0, b_sum.type.shape[0], gl.SliceLayout(1, layout))
    o_r = gl.arange(0, b_sum.type.shape[1], gl.SliceLayout(0, layout))
    gl.store(p_own + o_d[:, None] * r + o_r[None, :], b_sum, mask=(o_d < d)[:, None] & (o_r < r)[None, :])
