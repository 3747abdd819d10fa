"""Resident NMF in Gluon for Hopper: all steps in one launch, X in shared memory. Names: `hopper.common`."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from hamburger.kernels.hopper.common import (
    SWIZZLED,
    arrive,
    block_offset,
    fence_shared,
    load_columns,
    load_partial_sums,
    partial_sum_layout,
    product_layout,
    row_layout,
    softmax,
    thread_barrier,
    wait,
    write_product,
    write_sums,
    zero_of,
)


@gluon.jit
def matrix_of_blocks(
    b_flat, DOWN: gl.constexpr, ACROSS: gl.constexpr, HIGH: gl.constexpr, WIDE: gl.constexpr
):  # fmt: skip
    """Assemble a matrix from DOWN x ACROSS blocks of HIGH x WIDE, in the order of `block_offset`."""
    return b_flat.reshape([DOWN, ACROSS, HIGH, WIDE]).permute([0, 2, 1, 3]).reshape([DOWN * HIGH, ACROSS * WIDE])


@gluon.jit
def add_partial_sums(
    p_xc, p_cc, o_xc, o_cc, programs,
    D: gl.constexpr, R: gl.constexpr, COLS: gl.constexpr, of_xc: gl.constexpr, of_cc: gl.constexpr,
):  # fmt: skip
    """Add all programs' partial sums of a unit of X C^T and of its columns of C C^T, in order, AT_ONCE at a time.

    xc, cc: pointers to those of the first program   ->   64 COLS,  COLS R, both flat, in stored order
    """
    STRIDE: gl.constexpr = (D + R) * R  # from one program to the next
    AT_ONCE: gl.constexpr = 32768 // (COLS * R)  # 64 registers per thread for each of the two
    b_xc = gl.zeros([64 * COLS], gl.float32, gl.SliceLayout(0, of_xc))
    b_cc = gl.zeros([COLS * R], gl.float32, gl.SliceLayout(0, of_cc))
    for i in range(0, programs, AT_ONCE):
        b_xc_parts = load_partial_sums(p_xc, i, programs, STRIDE, o_xc, AT_ONCE, of_xc)
        b_cc_parts = load_partial_sums(p_cc, i, programs, STRIDE, o_cc, AT_ONCE, of_cc)
        b_xc += gl.sum(b_xc_parts.to(gl.float32), axis=0)
        b_cc += gl.sum(b_cc_parts.to(gl.float32), axis=0)
    return b_xc, b_cc


@gluon.jit
def update_unit(
    p_old, p_new, p_copy, p_sums, b_rows, b_cc, d, r, programs, i_d, i_r, eps,
    D: gl.constexpr, R: gl.constexpr, COLS: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """D * (X C^T) / (D C C^T + eps) for unit (i_d, i_r) of D: 64 rows and COLS columns.

    One program updates each unit: it adds up the partial sums of all programs in order.
    Global memory: old, new: d r in float32   copy: D R in bfloat16, the new D for all programs   sums: programs
    (D + R) R, in blocks: partial sums of X C^T, below them those of C C^T.
    Shared memory: rows: 64 R, the old D   cc: COLS (or 8) R, free, for the unit's columns of C C^T
    """
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, W // 4], instr_shape=[16, 8, 16])
    of_xc: gl.constexpr = partial_sum_layout(64 * COLS, W)
    of_cc: gl.constexpr = partial_sum_layout(COLS * R, W)
    WIDE: gl.constexpr = COLS if COLS < 8 else 8  # columns of a block of the sums
    ROWS: gl.constexpr = COLS if COLS < 8 else 8  # rows of a block of C C^T that are in the unit
    HALVES: gl.constexpr = 8 // ROWS  # units that share a block of C C^T
    N: gl.constexpr = 8 if COLS < 8 else COLS  # a product has at least eight columns: some are computed twice
    zero = gl.zeros([64, N], gl.float32, mma)
    o_row = gl.arange(0, 64, gl.SliceLayout(1, mma))
    o_col = gl.arange(0, N, gl.SliceLayout(0, mma))
    o_xc = gl.arange(0, 64 * COLS, gl.SliceLayout(0, of_xc))
    o_xc = o_xc % (8 * COLS) + (8 * R) * (o_xc // (8 * COLS))  # row of blocks after row of blocks
    o_cc = gl.arange(0, COLS * R, gl.SliceLayout(0, of_cc))
    o_cc = o_cc % (ROWS * WIDE) + (8 * WIDE) * (o_cc // (ROWS * WIDE))
    o_d, o_r = i_d * 64 + o_row, i_r * COLS + o_col % COLS
    # 64 N
    m_d = (o_d < d)[:, None] & (o_r < r)[None, :]
    o_unit = o_d[:, None] * r + o_r[None, :]
    b_old = gl.load(p_old + o_unit, mask=m_d, other=0.0)
    # C C^T is symmetric: read its rows instead of its columns
    p_xc = p_sums + i_d * (64 * R) + i_r * (8 * COLS)
    p_cc = p_sums + D * R + i_r // HALVES * (COLS // ROWS * 8 * R) + i_r % HALVES * (ROWS * WIDE)
    b_xc, b_part = add_partial_sums(p_xc, p_cc, o_xc, o_cc, programs, D, R, COLS, of_xc, of_cc)
    b_part = matrix_of_blocks(b_part, COLS // ROWS, R // WIDE, ROWS, WIDE)
    b_xc = matrix_of_blocks(b_xc, 8, COLS // WIDE, 8, WIDE)
    if N > COLS:
        b_part = gl.join(b_part, b_part).permute([2, 0, 1]).reshape([N, R])
        b_xc = gl.join(b_xc, b_xc).permute([0, 2, 1]).reshape([64, N])
    b_cc.store(b_part.to(gl.bfloat16))
    b_xc = gl.convert_layout(b_xc, mma)
    fence_shared()
    b_dcc = warpgroup_mma(b_rows, b_cc.permute([1, 0]), zero, use_acc=False)
    b_new = b_old * b_xc / (b_dcc + eps)
    m_new = m_d & (o_col < COLS)[None, :]
    gl.store(p_new + o_unit, b_new, mask=m_new)
    p_unit = p_copy + o_d[:, None] * R + o_r[None, :]
    gl.store(p_unit, gl.where(m_d, b_new, 0.0).to(gl.bfloat16), mask=(o_col < COLS)[None, :] & (o_row >= 0)[:, None])
    thread_barrier()  # b_cc is free again


@gluon.jit
def load_rows(p_d, d, r, s_d, i, z, R: gl.constexpr, W: gl.constexpr):
    """Load 64 rows of D, from 64 i on, zeros beyond d and r. Bypasses L1: others wrote them.   ->   64 R, bfloat16"""
    ld_d: gl.constexpr = row_layout(R, 8, W)
    o_d = z + i * 64 + gl.arange(0, 64, gl.SliceLayout(1, ld_d))
    o_r = gl.arange(0, R, gl.SliceLayout(0, ld_d))
    # 64 R
    m_d = (o_d < d)[:, None] & (o_r < r)[None, :]
    rows = gl.load(p_d + o_d[:, None] * s_d + o_r[None, :], mask=m_d, other=0.0, cache_modifier=".cg")
    return rows.to(gl.bfloat16)


@gluon.jit
def project_bases(
    p_d, b_x, b_d, b_g, zero_c, zero_r, d, r, s_d, z,
    D: gl.constexpr, XD: gl.constexpr, R: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Load D into shared memory; return X^T D (BN R) and write D^T D, both computed as the rows of D arrive.

    All loads of D are issued at once: latency from L2 dominates here. x: D/XD XD BN   d: D/64 64 R   g: R R
    """
    AHEAD: gl.constexpr = D // 64 if R < 128 else 2  # as many as fit into registers
    rows = ()
    for i in gl.static_range(AHEAD):
        rows += (load_rows(p_d, d, r, s_d, i, z, R, W),)
    b_xd, b_gram = zero_c, zero_r
    for i in gl.static_range(D // 64):
        b_d.index(i + z).store(rows[i])
        if i + AHEAD < D // 64:
            rows += (load_rows(p_d, d, r, s_d, i + AHEAD, z, R, W),)
        if i % 2 == 1:
            fence_shared()
            for j in gl.static_range(i - 1, i + 1):
                b_rows, b_basis = b_x.index(j * 64 // XD + z).slice(j * 64 % XD, 64, dim=0), b_d.index(j + z)
                b_gram = warpgroup_mma(b_basis.permute([1, 0]), b_basis, b_gram, use_acc=j > 0, is_async=True)
                b_xd = warpgroup_mma(b_rows.permute([1, 0]), b_basis, b_xd, use_acc=j > 0, is_async=True)
    b_xd, b_gram = warpgroup_mma_wait(0, deps=[b_xd, b_gram])
    b_g.store(b_gram.to(gl.bfloat16))
    return b_xd


@gluon.jit
def reciprocal(b_a):
    """1 / a with an error of one or two units in the last place, in a fourth of the instructions of a division."""
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [b_a], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def ratio_of(b_codes, b_g, mask, zero, eps):
    """C / (D^T D C + eps), zero outside of the mask, where it may be 0 / 0.   codes: BN R   g: R R, shared   ->   BN R

    C is a register operand: a product's rows have the layout of a left operand.
    """
    mma: gl.constexpr = b_codes.type.layout
    b_factor = gl.convert_layout(b_codes.to(gl.bfloat16), gl.DotOperandLayout(0, mma, 2))
    b_gc = warpgroup_mma(b_factor, b_g, zero, use_acc=False)
    return gl.where(mask, b_codes * reciprocal(b_gc + eps), 0.0)


@gluon.jit(do_not_specialize=["steps", "programs"])
def nmf_resident_kernel(
    p_x, p_initial, p_d, p_copy, p_c, p_ratio, p_y, p_sums, p_count,
    d, n, width, r, steps, programs, eps, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_initial, s_count,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, COLS: gl.constexpr,
    N_FAST: gl.constexpr, RATIO: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """K steps and the read-out, with Y also D C. Grid: programs per image, b.

    A program owns BN columns and every `programs`-th unit of D. Shared memory holds its columns of X for all steps, D,
    its codes and D^T D, all in bfloat16; registers hold its codes in float32. A step has two grid barriers per image:
    before programs read partial sums (`sums`), and before they read D (`copy`).

    x, y: b d n in bfloat16, any strides; x is read up to width, where it is zero from n on. initial, d: b d r in
    float32; copy: b D R in bfloat16, D for the next step.
    c: b n r. ratio: C / (D^T D C + eps) before the read-out, all that its gradient needs. sums: b programs (D + R) R.
    count: two counters per image, zero, s_count apart.
    """
    W: gl.constexpr = num_warps
    BD: gl.constexpr = 128  # rows of X C^T per product
    WIDE: gl.constexpr = COLS if COLS < 8 else 8  # columns of a block of the sums
    XD: gl.constexpr = 256 if D > 256 else D  # an operand of tensor cores has at most 256 rows
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[W, 1], instr_shape=[16, R, 16])
    mma_r: gl.constexpr = product_layout(64, R, W)
    b_x = gl.allocate_shared_memory(gl.bfloat16, [D // XD, XD, BN], SWIZZLED)
    b_d = gl.allocate_shared_memory(gl.bfloat16, [D // 64, 64, R], SWIZZLED)
    # arrays of one, indexed anew in each step: else their addresses would be kept in registers and spilled
    b_codes_place = gl.allocate_shared_memory(gl.bfloat16, [1, BN, R], SWIZZLED)
    b_gram_place = gl.allocate_shared_memory(gl.bfloat16, [1, R, R], SWIZZLED)

    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_initial += i_b * s_initial
    p_d += i_b * d * r
    p_copy += i_b * (D * R)
    p_sums += i_b * programs * ((D + R) * R)
    p_own = p_sums + i_p * ((D + R) * R)
    p_count += i_b * s_count
    o_n = i_p * BN + gl.arange(0, BN, gl.SliceLayout(1, mma))
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))
    m_r = (o_r < r)[None, :]
    m_c = (o_n < n)[:, None] & m_r
    o_c = (i_b * n + o_n)[:, None] * r + o_r[None, :]
    o_gi = gl.arange(0, R, gl.SliceLayout(1, mma_r))
    o_gj = gl.arange(0, R, gl.SliceLayout(0, mma_r))
    zero_c = gl.zeros([BN, R], gl.float32, mma)
    zero_r = gl.zeros([R, R], gl.float32, mma_r)
    zero_d = gl.zeros([BD, R], gl.float32, mma)

    # initial codes
    load_columns(p_x + i_b * s_xb, b_x, d, width, s_xd, s_xn, i_p, D, XD, XD, BN, N_FAST, W)
    b_xd = project_bases(p_initial, b_x, b_d, b_gram_place.index(0), zero_c, zero_r, d, r, r, 0, D, XD, R, W)
    b_codes = softmax(b_xd, m_r)

    for step in range(steps + 1):
        z = zero_of(step)
        b_c, b_g = b_codes_place.index(z), b_gram_place.index(z)
        # C * D^T X / (D^T D C + eps)
        fence_shared()
        b_ratio = ratio_of(b_codes, b_g, m_c, zero_c, eps)
        b_codes = b_ratio * b_xd
        b_c.store(b_codes.to(gl.bfloat16))
        fence_shared()
        if step < steps:
            # this program's partial sums of C C^T and X C^T
            b_own = warpgroup_mma(b_c.permute([1, 0]), b_c, zero_r, use_acc=False)
            gl.store(p_own + z + D * R + block_offset(o_gi[:, None], o_gj[None, :], R, WIDE), b_own.to(gl.bfloat16))
            write_sums(b_x, b_c, p_own, zero_d, z, D, BD, XD, R, WIDE)
            arrive(p_count)
            wait(p_count, programs * (step + 1))
            # this program's units of D
            p_old = p_d
            if step == 0:
                p_old = p_initial
            b_cc = b_g.slice(0, COLS if COLS > 8 else 8, dim=0)  # D^T D is recomputed before it is needed
            for i_u in range(i_p, D // 64 * (R // COLS), programs):
                i_d, i_r = i_u // (R // COLS), i_u % (R // COLS)
                update_unit(
                    p_old, p_d, p_copy, p_sums + z, b_d.index(i_d), b_cc, d, r, programs, i_d, i_r, eps, D, R, COLS, W
                )  # fmt: skip
            arrive(p_count + 1)
            wait(p_count + 1, programs * (step + 1))
            # all of the new D, X^T D and D^T D
            b_xd = project_bases(p_copy, b_x, b_d, b_g, zero_c, zero_r, D, R, R, z, D, XD, R, W)
        elif RATIO:
            gl.store(p_ratio + o_c, b_ratio.to(p_ratio.dtype.element_ty), mask=m_c)
    gl.store(p_c + o_c, b_codes.to(p_c.dtype.element_ty), mask=m_c)
    if Y:
        write_product(b_d, b_codes_place.index(0), b_x, p_y + i_b * s_yb, d, n, s_yd, s_yn, i_p, D, XD, BN, N_FAST, W)
