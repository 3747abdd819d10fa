"""Multiplicative updates in Triton: two passes over columns and the update of D. Letters: `hamburger.ops.kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from hamburger.ops.kernels import add_parts, expand, load_codes, own_columns, product, project, softmax, store_codes


@triton.jit
def ratio(
    p_c, p_g, n, r, o_n, eps,
    KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C / (D^T D C + eps) for a tile of columns.   c: n r   g (D^T D): r r   ->   BN R"""
    o_r = tl.arange(0, R)
    b_gc = tl.zeros([BN, R], tl.float32)
    for i_k in range(0, r, BK):
        o_k = i_k + tl.arange(0, BK)
        # BN BK
        b_k = tl.load(p_c + o_n[:, None] * r + o_k[None, :], mask=(o_n < n)[:, None] & (o_k < r)[None, :], other=0.0)
        # BK R
        b_g = tl.load(p_g + o_k[:, None] * r + o_r[None, :], mask=(o_k < r)[:, None] & (o_r < r)[None, :], other=0.0)
        b_gc = product(b_k, b_g, b_gc, KIND)
    b_ratio = load_codes(p_c, n, r, o_n, R) / (b_gc + eps)
    return tl.where((o_r < r)[None, :], b_ratio, 0.0)  # with eps = 0 the padding is 0 / 0


@triton.jit
def sweep_kernel(
    p_x, p_d, p_g, p_c, d, n, r, s_xb, s_xd, s_xn, eps,
    FIRST: tl.constexpr, KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One update of the codes, in place; FIRST makes the codes before it. Grid: b * tiles of n.

    A program owns BN columns.   x: b d n   d: b d r   g (D^T D): b r r   c: b n r
    """
    i_b, o_n = own_columns(n, BN)
    p_d, p_g, p_c = p_d + i_b * d * r, p_g + i_b * r * r, p_c + i_b * n * r
    b_xd = project(p_x + i_b * s_xb, p_d, d, n, r, s_xd, s_xn, o_n, KIND, R, BN, BD)
    if FIRST:
        store_codes(softmax(b_xd, r, R), p_c, n, r, o_n, R)
        tl.debug_barrier()  # `ratio` reads them back, each thread what others wrote
    b_c = ratio(p_c, p_g, n, r, o_n, eps, KIND, R, BN, BK) * b_xd
    tl.debug_barrier()  # nobody overwrites what another thread has still to read
    store_codes(b_c, p_c, n, r, o_n, R)


@triton.jit
def readout_kernel(
    p_x, p_d, p_g, p_c, p_last, p_ratio, p_y, d, n, r, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, eps,
    FIRST: tl.constexpr, KEEP: tl.constexpr, EXPAND: tl.constexpr,
    KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The last update of the codes, into `last`, and where EXPAND Y = D C. Grid: b * tiles of n.

    x, y: b d n   d: b d r   g (D^T D): b r r   c, last, ratio (Q): b n r   A program owns BN columns.
    It is linear in X: C = Q * D^T X with Q = C / (D^T D C + eps) from before it, all that its gradient needs (KEEP).
    """
    i_b, o_n = own_columns(n, BN)
    p_d, p_g, p_c = p_d + i_b * d * r, p_g + i_b * r * r, p_c + i_b * n * r
    b_xd = project(p_x + i_b * s_xb, p_d, d, n, r, s_xd, s_xn, o_n, KIND, R, BN, BD)
    if FIRST:
        store_codes(softmax(b_xd, r, R), p_c, n, r, o_n, R)
        tl.debug_barrier()
    b_ratio = ratio(p_c, p_g, n, r, o_n, eps, KIND, R, BN, BK)
    if KEEP:
        store_codes(b_ratio.to(p_ratio.dtype.element_ty), p_ratio + i_b * n * r, n, r, o_n, R)
    b_c = b_ratio * b_xd
    tl.debug_barrier()  # `last` may be `c`
    store_codes(b_c.to(p_last.dtype.element_ty), p_last + i_b * n * r, n, r, o_n, R)
    if EXPAND:
        expand(b_c, p_d, p_y + i_b * s_yb, d, n, r, s_yd, s_yn, o_n, KIND, R, BN, BD)


@triton.jit
def pull_back_kernel(
    p_dy, p_d, p_ratio, p_more, p_dx, d, n, r, s_yb, s_yd, s_yn, s_xb, s_xd, s_xn,
    MORE: tl.constexpr, KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The cotangent of X: D (Q * (D^T dY + dC)), dC where MORE. Grid: b * tiles of n.

    A program owns BN columns.   dy, dx: b d n   d: b d r   ratio (Q), more (dC): b n r
    """
    i_b, o_n = own_columns(n, BN)
    p_d += i_b * d * r
    b_dc = project(p_dy + i_b * s_yb, p_d, d, n, r, s_yd, s_yn, o_n, KIND, R, BN, BD)
    if MORE:
        b_dc += load_codes(p_more + i_b * n * r, n, r, o_n, R)
    b_dc *= load_codes(p_ratio + i_b * n * r, n, r, o_n, R).to(tl.float32)
    expand(b_dc, p_d, p_dx + i_b * s_xb, d, n, r, s_xd, s_xn, o_n, KIND, R, BN, BD)


@triton.jit
def bases_kernel(
    p_d, p_sums, p_new, d, r, parts, eps,
    KIND: tl.constexpr, FD: tl.constexpr, FR: tl.constexpr, FK: tl.constexpr, FP: tl.constexpr, FPK: tl.constexpr,
):  # fmt: skip
    """D * (X C^T) / (D C C^T + eps) from partial sums. Grid: b * tiles of d, tiles of r.

    A program owns a tile of D, FD x FR.   d, new: b d r   sums: b parts (d + r) r, as `sums_kernel` leaves them
    """
    i_b = (tl.program_id(0) // tl.cdiv(d, FD)).to(tl.int64)
    o_d = (tl.program_id(0) % tl.cdiv(d, FD) * FD + tl.arange(0, FD)).to(tl.int64)
    o_r = tl.program_id(1) * FR + tl.arange(0, FR)
    p_d, p_new, p_sums = p_d + i_b * d * r, p_new + i_b * d * r, p_sums + i_b * parts * (d + r) * r
    b_dcc = tl.zeros([FD, FR], tl.float32)
    for i_k in range(0, r, FK):
        o_k = i_k + tl.arange(0, FK)
        # FD FK
        b_k = tl.load(p_d + o_d[:, None] * r + o_k[None, :], mask=(o_d < d)[:, None] & (o_k < r)[None, :], other=0.0)
        b_cc = add_parts(p_sums, parts, d + r, d + o_k, d + r, o_r, r, FK, FR, FPK)
        b_dcc = product(b_k, b_cc, b_dcc, KIND)
    b_xc = add_parts(p_sums, parts, d + r, o_d, d, o_r, r, FD, FR, FP)
    # FD FR
    m_d = (o_d < d)[:, None] & (o_r < r)[None, :]
    b_d = tl.load(p_d + o_d[:, None] * r + o_r[None, :], mask=m_d, other=0.0)
    tl.store(p_new + o_d[:, None] * r + o_r[None, :], b_d * b_xc / (b_dcc + eps), mask=m_d)
