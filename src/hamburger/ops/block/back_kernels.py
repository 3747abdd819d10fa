"""The way back from u = E C to the lower bread, in Triton. Letters: `hamburger.ops.kernels`.

C is b n r, E = W_u D is b c r and D is b d r, each as it lies in memory; x, z and u (b c n, b d n, b c n) may have any
strides. What a batch norm in training adds to it is made in `norm_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hamburger.ops.kernels import own_columns, own_part, product, project, store_codes


@triton.jit
def codes_kernel(
    p_x, p_a, p_c, d, n, r, s_xb, s_xd, s_xn,
    KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """X^T A.   x: b d n   a: b d r   c: b n r   Grid: b * tiles of n."""
    i_b, o_n = own_columns(n, BN)
    b_c = project(p_x + i_b * s_xb, p_a + i_b * d * r, d, n, r, s_xd, s_xn, o_n, KIND, R, BN, BD)
    store_codes(b_c, p_c + i_b * n * r, n, r, o_n, R)


@triton.jit
def cotangent_of_codes(
    p_ds, p_e, p_c, p_mix, c, n, r, s_sc, s_sn, o_n,
    NORM: tl.constexpr, PROJECT: tl.constexpr, FINE: tl.constexpr,
    R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """E^T dS for a tile of columns, less what a batch norm in training takes off it (NORM).   ->   BN R

    p_ds: c n   p_e: c r   p_c: n r   p_mix: (r + 1) r, from `norm_back_kernel`.
    PROJECT and FINE: kinds of products, see `launches._kinds`.
    """
    b_dc = project(p_ds, p_e, c, n, r, s_sc, s_sn, o_n, PROJECT, R, BN, BD)
    if NORM:
        o_r = tl.arange(0, R)
        b_dc -= tl.load(p_mix + r * r + o_r, mask=o_r < r, other=0.0)[None, :]
        for i_r in range(0, r, BK):
            o_k = i_r + tl.arange(0, BK)
            # BN BK
            m_c = (o_n < n)[:, None] & (o_k < r)[None, :]
            b_c = tl.load(p_c + o_n[:, None] * r + o_k[None, :], mask=m_c, other=0.0)
            # BK R
            m_mix = (o_k < r)[:, None] & (o_r < r)[None, :]
            b_mix = tl.load(p_mix + o_k[:, None] * r + o_r[None, :], mask=m_mix, other=0.0)
            b_dc = product(b_c, -b_mix, b_dc, FINE)
        b_dc = tl.where((o_n < n)[:, None], b_dc, 0.0)  # the shift reaches beyond the last column
    return b_dc


@triton.jit
def cotangent_kernel(
    p_ds, p_e, p_c, p_mix, p_dc, c, n, r, s_sb, s_sc, s_sn,
    PROJECT: tl.constexpr, FINE: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """`cotangent_of_codes` behind a norm, written out.   ds: b c n   c, dc: b n r   Grid: b * tiles of n."""
    i_b, o_n = own_columns(n, BN)
    p_mix += i_b * (r + 1) * r
    b_dc = cotangent_of_codes(
        p_ds + i_b * s_sb, p_e + i_b * c * r, p_c + i_b * n * r, p_mix, c, n, r, s_sc, s_sn, o_n,
        True, PROJECT, FINE, R, BN, BD, BK,
    )  # fmt: skip
    store_codes(b_dc, p_dc + i_b * n * r, n, r, o_n, R)


@triton.jit
def pull_back_kernel(
    p_du, p_e, p_c, p_mix, p_q, p_d, p_z, p_dz, p_sums, c, d, n, r, s_ub, s_uc, s_un, s_zb, s_zd, s_zn,
    NORM: tl.constexpr, RATIO: tl.constexpr, MASK: tl.constexpr,
    KIND: tl.constexpr, PROJECT: tl.constexpr, FINE: tl.constexpr,
    R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dZ = D (E^T dU * Q), Q left out where not RATIO, zero where z is not positive (MASK). Grid: b * tiles of n.

    A program owns BN columns.   du: b c n   e: b c r   c, q: b n r   d: b d r   z, dz: b d n
    Where NORM, u went through a batch norm in training, and du is the cotangent behind it: see `cotangent_of_codes`.
    sums: b * tiles of n, d holds the sums of dZ over each program's columns. z and dz have the same strides.
    """
    i_b, o_n = own_columns(n, BN)
    o_r = tl.arange(0, R)
    p_mix += i_b * (r + 1) * r
    b_dc = cotangent_of_codes(
        p_du + i_b * s_ub, p_e + i_b * c * r, p_c + i_b * n * r, p_mix, c, n, r, s_uc, s_un, o_n,
        NORM, PROJECT, FINE, R, BN, BD, BK,
    )  # fmt: skip
    if RATIO:
        # BN R
        m_q = (o_n < n)[:, None] & (o_r < r)[None, :]
        b_dc *= tl.load(p_q + i_b * n * r + o_n[:, None] * r + o_r[None, :], mask=m_q, other=0.0).to(tl.float32)
    p_d += i_b * d * r
    p_sums += tl.program_id(0).to(tl.int64) * d
    for i_d in range(0, d, BD):
        o_d = (i_d + tl.arange(0, BD)).to(tl.int64)
        # R BD
        b_d = tl.load(p_d + o_r[:, None] + o_d[None, :] * r, mask=(o_r < r)[:, None] & (o_d < d)[None, :], other=0.0)
        b_dz = product(b_dc, b_d, tl.zeros([BN, BD], tl.float32), KIND)
        m_z = (o_n < n)[:, None] & (o_d < d)[None, :]
        o_z = i_b * s_zb + o_n[:, None] * s_zn + o_d[None, :] * s_zd
        if MASK:
            # BN BD
            b_z = tl.load(p_z + o_z, mask=m_z, other=0.0)
            b_dz = tl.where(b_z <= 0, 0.0, b_dz)
        tl.store(p_dz + o_z, b_dz.to(p_dz.dtype.element_ty), mask=m_z)
        tl.store(p_sums + o_d, tl.sum(b_dz, axis=0), mask=o_d < d)


@triton.jit
def weight_kernel(
    p_a, p_b, p_sums, d, c, n, length, s_ab, s_ad, s_an, s_bb, s_bc, s_bn,
    KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A B^T over positions, in parts.   a: b d n   b: b c n   sums: b * parts d c   Grid: b * parts, tiles of d, c."""
    i_bs, i_b, begin, end = own_part(n, length)
    o_m = (tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)
    o_c = (tl.program_id(2) * N + tl.arange(0, N)).to(tl.int64)
    p_a += i_b * s_ab + o_m[:, None] * s_ad
    p_b += i_b * s_bb + o_c[None, :] * s_bc
    b_sum = tl.zeros([M, N], tl.float32)
    for i_n in range(begin, end, K):
        o_n = (i_n + tl.arange(0, K)).to(tl.int64)
        # M K
        b_a = tl.load(p_a + o_n[None, :] * s_an, mask=(o_m < d)[:, None] & (o_n < end)[None, :], other=0.0)
        # K N
        b_b = tl.load(p_b + o_n[:, None] * s_bn, mask=(o_n < end)[:, None] & (o_c < c)[None, :], other=0.0)
        b_sum = product(b_a, b_b, b_sum, KIND)
    m_sum = (o_m < d)[:, None] & (o_c < c)[None, :]
    tl.store(p_sums + i_bs * d * c + o_m[:, None] * c + o_c[None, :], b_sum, mask=m_sum)
