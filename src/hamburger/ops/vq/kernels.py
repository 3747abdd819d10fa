"""The one-step gradient of soft vector quantisation in Triton. Letters: `hamburger.ops.kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from hamburger.ops.cosine_kernels import inverse_norms, products_and_squares, unit_scales
from hamburger.ops.kernels import load_codes, own_columns, product, project, softmax


@triton.jit
def pull_back_kernel(
    p_x, p_dy, p_d, p_more, p_dx, p_sums, d, n, r,
    s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_gb, s_gd, s_gn, temperature,
    OF_Y: tl.constexpr, OF_C: tl.constexpr, SUMS: tl.constexpr,
    CONSTANT: tl.constexpr, EPS: tl.constexpr, TINY: tl.constexpr,
    KIND: tl.constexpr, COARSE: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The cotangent of X from that of Y = D C (OF_Y), that of C (OF_C), or both. Grid: b * tiles of n.

    A program owns BN columns.   x, dy, dx: b d n   d: b d r   more (dC): b n r
    The codes are made again from X and D rather than kept. With u = d / |d|, cos = u^T x / |x| and the cotangent a of
    cos, dx = (sum_r a u - (sum_r a cos) x / |x|) / |x|; CONSTANT norms leave out the second term.
    sums: b * tiles of n, d gets the sums of dx over each program's columns (SUMS).
    """
    i_b, o_n = own_columns(n, BN)
    p_x, p_d, p_dx = p_x + i_b * s_xb, p_d + i_b * d * r, p_dx + i_b * s_gb
    b_sum, b_xx, b_dd = products_and_squares(p_x, p_d, d, n, r, s_xd, s_xn, o_n, True, KIND, R, BN, BD)
    b_scale, b_unit = inverse_norms(b_xx, TINY), unit_scales(b_dd, False, EPS)
    b_cos = b_sum * b_unit[None, :] * b_scale[:, None]
    b_c = softmax(b_cos / temperature, r, R)
    b_dc = tl.zeros([BN, R], tl.float32)
    if OF_Y:
        b_dc += project(p_dy + i_b * s_yb, p_d, d, n, r, s_yd, s_yn, o_n, COARSE, R, BN, BD)
    if OF_C:
        b_dc += load_codes(p_more + i_b * n * r, n, r, o_n, R)
    b_a = b_c * (b_dc - tl.sum(b_c * b_dc, axis=1)[:, None]) / temperature
    b_along = tl.sum(b_a * b_cos, axis=1) * b_scale
    b_a = b_a * b_unit[None, :]

    o_r = tl.arange(0, R)
    for i_d in range(0, d, BD):
        o_d = (i_d + tl.arange(0, BD)).to(tl.int64)
        m_x = (o_n < n)[:, None] & (o_d < d)[None, :]
        # R BD
        m_d = (o_r < r)[:, None] & (o_d < d)[None, :]
        b_d = tl.load(p_d + o_r[:, None] + o_d[None, :] * r, mask=m_d, other=0.0)
        b_dx = product(b_a, b_d, tl.zeros([BN, BD], tl.float32), COARSE)
        if not CONSTANT:
            # BN BD
            b_x = tl.load(p_x + o_n[:, None] * s_xn + o_d[None, :] * s_xd, mask=m_x, other=0.0)
            b_dx -= b_along[:, None] * b_x.to(tl.float32)
        b_dx = b_dx * b_scale[:, None]
        tl.store(p_dx + o_n[:, None] * s_gn + o_d[None, :] * s_gd, b_dx.to(p_dx.dtype.element_ty), mask=m_x)
        if SUMS:
            b_dx = tl.where(m_x, b_dx, 0.0)
            tl.store(p_sums + tl.program_id(0).to(tl.int64) * d + o_d, tl.sum(b_dx, axis=0), mask=o_d < d)
