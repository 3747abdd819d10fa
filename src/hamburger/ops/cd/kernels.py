"""The read-out of soft concept decomposition in Triton, and its gradient. Letters: `hamburger.ops.kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from hamburger.ops.kernels import expand, load_codes, own_columns, project, store_codes


@triton.jit
def readout_kernel(
    p_x, p_in, p_out, p_more, p_c, p_y, d, n, r, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn,
    MORE: tl.constexpr, STORE: tl.constexpr, EXPAND: tl.constexpr,
    KIND: tl.constexpr, COARSE: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """C = A^T X and where EXPAND Y = B C for two dictionaries A (in) and B (out), both b d r. Grid: b * tiles of n.

    A program owns BN columns.   x, y: b d n   more, c: b n r
    The read-out has A = M^T (the ridge projector) and B = D; its derivative has them exchanged, the cotangent of Y in
    place of X and that of C added (MORE), with no codes to keep.
    """
    i_b, o_n = own_columns(n, BN)
    b_c = project(p_x + i_b * s_xb, p_in + i_b * d * r, d, n, r, s_xd, s_xn, o_n, KIND, R, BN, BD)
    if MORE:
        b_c += load_codes(p_more + i_b * n * r, n, r, o_n, R)
    if STORE:
        store_codes(b_c, p_c + i_b * n * r, n, r, o_n, R)
    if EXPAND:
        expand(b_c, p_out + i_b * d * r, p_y + i_b * s_yb, d, n, r, s_yd, s_yn, o_n, COARSE, R, BN, BD)
