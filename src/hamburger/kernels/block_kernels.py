"""Triton kernels of the block around a ham: breads, E C with norm, skip and ReLU, and their gradients."""

from __future__ import annotations

import triton
import triton.language as tl

from hamburger.kernels.common import load_codes, own_columns, own_part, product, project, store_codes


@triton.jit
def own_tile(rows, n, M: tl.constexpr, N: tl.constexpr):
    """This program's tile. Tiles of the same columns are neighbours, so that they share columns in the cache.

    ->   i_b, o_m: M, o_n: N
    """
    tiles_m, tiles_n = tl.cdiv(rows, M), tl.cdiv(n, N)
    i_m, i_rest = tl.program_id(0) % tiles_m, tl.program_id(0) // tiles_m
    i_b, i_n = i_rest // tiles_n, i_rest % tiles_n
    o_m = i_m.to(tl.int64) * M + tl.arange(0, M)
    o_n = i_n.to(tl.int64) * N + tl.arange(0, N)
    return i_b.to(tl.int64), o_m, o_n


@triton.jit
def make_bases(
    p_initial, p_made, d, r, s_initial, eps, i, UNIT: tl.constexpr, D: tl.constexpr, FR: tl.constexpr
):  # fmt: skip
    """The i-th of b * tiles of r: FR columns of the initial bases of a sample, normalised if UNIT."""
    i_b, i_r = (i // tl.cdiv(r, FR)).to(tl.int64), i % tl.cdiv(r, FR)
    o_d, o_r = tl.arange(0, D), i_r * FR + tl.arange(0, FR)
    # D FR
    o_bases = o_d[:, None] * r + o_r[None, :]
    m_bases = (o_d < d)[:, None] & (o_r < r)[None, :]
    b_bases = tl.load(p_initial + i_b * s_initial + o_bases, mask=m_bases, other=0.0)
    if UNIT:
        b_norm = tl.sqrt(tl.sum(b_bases * b_bases, axis=0))
        b_bases = b_bases / tl.where(b_norm < eps, eps, b_norm)[None, :]
    tl.store(p_made + i_b * d * r + o_bases, b_bases, mask=m_bases)


@triton.jit
def prepare_kernel(
    p_w, p_rounded, p_initial, p_made, p_count, size, d, r, counts, s_initial, eps,
    ROUND: tl.constexpr, MAKE: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr, FR: tl.constexpr,
):  # fmt: skip
    """Prepare a solve: round w (ROUND), copy the initial bases of each sample (MAKE), set counters to zero.

    w: size numbers   initial: d r of each sample, s_initial apart (0: one for all)   made: b d r, its columns of unit
    length where UNIT; D is d padded   count: counts   Grid: tiles of w where ROUND, then b * tiles of r where MAKE; at
    least one, and the first clears the counters next to its own work.
    """
    i = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    if i == 0:
        for i_count in range(0, counts, BLOCK):
            tl.store(p_count + i_count + o, tl.zeros([BLOCK], tl.int32), mask=i_count + o < counts)
    if ROUND:
        if i < tl.cdiv(size, BLOCK):
            o_w = i * BLOCK + o
            tl.store(p_rounded + o_w, tl.load(p_w + o_w, mask=o_w < size, other=0.0).to(tl.bfloat16), mask=o_w < size)
        i -= tl.cdiv(size, BLOCK)
    if MAKE:  # noqa: SIM102 - known when the kernel is compiled; the other is not
        if i >= 0:
            make_bases(p_initial, p_made, d, r, s_initial, eps, i, UNIT, D, FR)


@triton.jit
def bread_kernel(
    p_x, p_w, p_bias, p_more, p_z, c, d, n, width, s_xb, s_xc, s_xn, s_wd, s_wc, s_mb, s_md, s_mn, s_zb, s_zd, s_zn,
    BIAS: tl.constexpr, MORE: tl.constexpr, RECTIFY: tl.constexpr,
    KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Z = W X (+ bias) (+ more), with a ReLU if RECTIFY; zero from n on. Grid: b * tiles of width and d.

    A program owns a tile of Z, M x N.   x: b c n   w: d c   bias: d   z: b d width   more: b d n, which may be z itself
    x and w are rounded as they arrive.
    """
    i_b, o_m, o_n = own_tile(d, width, M, N)
    o_k = tl.arange(0, K).to(tl.int64)
    p_w += o_m[:, None] * s_wd + o_k[None, :] * s_wc
    p_x += i_b * s_xb + o_k[:, None] * s_xc + o_n[None, :] * s_xn
    b_z = tl.zeros([M, N], tl.float32)
    for i_c in range(0, c, K):
        m_k = o_k < c - i_c
        # M K
        b_w = tl.load(p_w, mask=(o_m < d)[:, None] & m_k[None, :], other=0.0)
        # K N
        b_x = tl.load(p_x, mask=m_k[:, None] & (o_n < n)[None, :], other=0.0)
        b_z = product(b_w, b_x, b_z, KIND)
        p_w += K * s_wc
        p_x += K * s_xc
    if BIAS:
        # M
        b_z += tl.load(p_bias + o_m, mask=o_m < d, other=0.0).to(tl.float32)[:, None]
    m_n = (o_n < n)[None, :]
    if MORE:
        p_more += i_b * s_mb + o_m[:, None] * s_md + o_n[None, :] * s_mn
        b_z += tl.load(p_more, mask=(o_m < d)[:, None] & m_n, other=0.0).to(tl.float32)
    if RECTIFY:
        b_z = tl.where(b_z < 0, 0.0, b_z)
    b_z = tl.where(m_n, b_z, 0.0)
    p_z += i_b * s_zb + o_m[:, None] * s_zd + o_n[None, :] * s_zn
    tl.store(p_z, b_z.to(p_z.dtype.element_ty), mask=(o_m < d)[:, None] & (o_n < width)[None, :])


@triton.jit
def normalize(b_u, p_mean, p_var, p_weight, p_bias, eps, o_m, c, AFFINE: tl.constexpr):
    """Batch norm with the given statistics: running ones, or those of a batch.   b_u: M N"""
    m_m = o_m < c
    # M, each of them
    b_mean = tl.load(p_mean + o_m, mask=m_m, other=0.0).to(tl.float32)
    b_var = tl.load(p_var + o_m, mask=m_m, other=1.0).to(tl.float32)
    b_scale = tl.rsqrt(b_var + eps)
    if AFFINE:
        b_scale *= tl.load(p_weight + o_m, mask=m_m, other=0.0).to(tl.float32)
    b_shift = -b_mean * b_scale
    if AFFINE:
        b_shift += tl.load(p_bias + o_m, mask=m_m, other=0.0).to(tl.float32)
    return b_u * b_scale[:, None] + b_shift[:, None]


@triton.jit
def finish_kernel(
    p_e, p_c, p_skip, p_mean, p_var, p_weight, p_bias, p_y, c, n, r, eps, s_sb, s_sc, s_sn, s_yb, s_yc, s_yn,
    NORM: tl.constexpr, AFFINE: tl.constexpr, SKIP: tl.constexpr, RECTIFY: tl.constexpr, LARGEST: tl.constexpr,
    KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Y = E C, then norm, skip and ReLU. Grid: b * tiles of n and c.

    A program owns a tile of Y, M x N.   e: b c r   c: b n r   skip, y: b c n   mean, var, weight, bias: c
    LARGEST is the largest number that y can hold, where the sum may exceed it.
    """
    i_b, o_m, o_n = own_tile(c, n, M, N)
    m_y = (o_m < c)[:, None] & (o_n < n)[None, :]
    if SKIP:  # loaded first: it arrives during the product
        # M N
        b_skip = tl.load(p_skip + i_b * s_sb + o_m[:, None] * s_sc + o_n[None, :] * s_sn, mask=m_y, other=0.0)
    p_e, p_c = p_e + i_b * c * r, p_c + i_b * n * r
    b_y = tl.zeros([M, N], tl.float32)
    for i_r in range(0, r, K):
        o_r = i_r + tl.arange(0, K)
        # M K
        b_e = tl.load(p_e + o_m[:, None] * r + o_r[None, :], mask=(o_m < c)[:, None] & (o_r < r)[None, :], other=0.0)
        # K N
        b_c = tl.load(p_c + o_r[:, None] + o_n[None, :] * r, mask=(o_r < r)[:, None] & (o_n < n)[None, :], other=0.0)
        b_y = product(b_e, b_c, b_y, KIND)
    if NORM:
        b_y = normalize(b_y, p_mean, p_var, p_weight, p_bias, eps, o_m, c, AFFINE)
    if SKIP:
        b_y += b_skip.to(tl.float32)
    if RECTIFY:
        b_y = tl.where(b_y < 0, 0.0, b_y)
    if LARGEST is not None:
        b_y = tl.where(b_y > LARGEST, LARGEST, tl.where(b_y < -LARGEST, -LARGEST, b_y))
    tl.store(p_y + i_b * s_yb + o_m[:, None] * s_yc + o_n[None, :] * s_yn, b_y.to(p_y.dtype.element_ty), mask=m_y)


# -- backward ----------------------------------------------------------------------------------------------------------


@triton.jit
def gradient_of_codes(
    p_ds, p_e, p_c, p_mix, c, n, r, s_sc, s_sn, o_n,
    NORM: tl.constexpr, PROJECT: tl.constexpr, FINE: tl.constexpr,
    R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """E^T dS for a tile of columns, minus what a batch norm in training subtracts (NORM).   ->   BN R

    p_ds: c n   p_e: c r   p_c: n r   p_mix: (r + 1) r, from `norm_backward_kernel`.
    PROJECT and FINE: kinds of products, see `block_launches._product_kinds`.
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
        b_dc = tl.where((o_n < n)[:, None], b_dc, 0.0)  # the shift is not zero beyond the last column
    return b_dc


@triton.jit
def codes_gradient_kernel(
    p_ds, p_e, p_c, p_mix, p_dc, c, n, r, s_sb, s_sc, s_sn,
    NORM: tl.constexpr, PROJECT: tl.constexpr, FINE: tl.constexpr,
    R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write `gradient_of_codes`.   ds: b c n   c, dc: b n r   Grid: b * tiles of n."""
    i_b, o_n = own_columns(n, BN)
    p_mix += i_b * (r + 1) * r
    b_dc = gradient_of_codes(
        p_ds + i_b * s_sb, p_e + i_b * c * r, p_c + i_b * n * r, p_mix, c, n, r, s_sc, s_sn, o_n,
        NORM, PROJECT, FINE, R, BN, BD, BK,
    )  # fmt: skip
    store_codes(b_dc, p_dc + i_b * n * r, n, r, o_n, R)


@triton.jit
def pull_back_kernel(
    p_du, p_e, p_c, p_mix, p_q, p_d, p_z, p_dz, p_sums, c, d, n, r, s_ub, s_uc, s_un, s_zb, s_zd, s_zn,
    NORM: tl.constexpr, RATIO: tl.constexpr, MASK: tl.constexpr,
    KIND: tl.constexpr, PROJECT: tl.constexpr, FINE: tl.constexpr,
    R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dZ = D (E^T dU * Q), without Q if not RATIO, zero where z is not positive (MASK). Grid: b * tiles of n.

    A program owns BN columns.   du: b c n   e: b c r   c, q: b n r   d: b d r   z, dz: b d n
    Where NORM, u went through a batch norm in training, and du is the cotangent behind it: see `gradient_of_codes`.
    sums: b * tiles of n, d holds the sums of dZ over each program's columns. z and dz have the same strides.
    """
    i_b, o_n = own_columns(n, BN)
    o_r = tl.arange(0, R)
    p_mix += i_b * (r + 1) * r
    b_dc = gradient_of_codes(
        p_du + i_b * s_ub, p_e + i_b * c * r, p_c + i_b * n * r, p_mix, c, n, r, s_uc, s_un, o_n,
        NORM, PROJECT, FINE, R, BN, BD, BK,
    )  # fmt: skip
    if RATIO:
        b_dc *= load_codes(p_q + i_b * n * r, n, r, o_n, R).to(tl.float32)
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
def weight_gradient_kernel(
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
