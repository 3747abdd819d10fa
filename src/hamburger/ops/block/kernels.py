"""The breads, and what follows the upper one, in Triton. Letters: `hamburger.ops.kernels`.

The way back is in `back_kernels`, a batch norm in training in `norm_kernels`.

C is b n r, E = W_u D is b c r and D is b d r, each as it lies in memory; x, z and y (b c n, b d n, b c n) may have any
strides. A ReLU is a `where`: a maximum would turn NaN into zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hamburger.ops.kernels import product


@triton.jit
def own_tile(rows, n, M: tl.constexpr, N: tl.constexpr):
    """Tiles of the same columns are neighbours: what they all read of those columns is still in the cache.

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
    """The i-th of b * tiles of r: FR columns of the first bases of a sample, of unit length where UNIT."""
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
    """What the kernels after it rely on: w rounded (ROUND), the first bases of each sample (MAKE), counts zero.

    w: size numbers   initial: d r of each sample, s_initial apart (0: one for all)   made: b d r, its columns of unit
    length where UNIT; D is d padded   count: counts   Grid: tiles of w where ROUND, then b * tiles of r where MAKE; at
    least one, and the first clears the counters beside its own work.
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
    p_x, p_w, p_bias, p_more, p_z, c, d, n, s_xb, s_xc, s_xn, s_wd, s_wc, s_mb, s_md, s_mn, s_zb, s_zd, s_zn,
    BIAS: tl.constexpr, MORE: tl.constexpr, RECTIFY: tl.constexpr,
    KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Z = W X (+ bias) (+ more), with a ReLU where RECTIFY. Grid: b * tiles of n and d.

    A program owns a tile of Z, M x N.   x: b c n   w: d c   bias: d   z: b d n   more: b d n, which may be z itself
    x and w are rounded as they arrive.
    """
    i_b, o_m, o_n = own_tile(d, n, M, N)
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
    m_z = (o_m < d)[:, None] & (o_n < n)[None, :]
    if MORE:
        p_more += i_b * s_mb + o_m[:, None] * s_md + o_n[None, :] * s_mn
        b_z += tl.load(p_more, mask=m_z, other=0.0).to(tl.float32)
    if RECTIFY:
        b_z = tl.where(b_z < 0, 0.0, b_z)
    p_z += i_b * s_zb + o_m[:, None] * s_zd + o_n[None, :] * s_zn
    tl.store(p_z, b_z.to(p_z.dtype.element_ty), mask=m_z)


@triton.jit
def normed(b_u, p_mean, p_var, p_weight, p_bias, eps, o_m, c, AFFINE: tl.constexpr):
    """Batch norm by the statistics it is given: running ones, or a batch's.   b_u: M N"""
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
    """Y = E C, and what follows it: the norm, + skip, ReLU. Grid: b * tiles of n and c.

    A program owns a tile of Y, M x N.   e: b c r   c: b n r   skip, y: b c n   mean, var, weight, bias: c
    LARGEST is the largest number that y can hold, where the sum may exceed it.
    """
    i_b, o_m, o_n = own_tile(c, n, M, N)
    m_y = (o_m < c)[:, None] & (o_n < n)[None, :]
    if SKIP:  # asked for first: it arrives while the product is made
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
        b_y = normed(b_y, p_mean, p_var, p_weight, p_bias, eps, o_m, c, AFFINE)
    if SKIP:
        b_y += b_skip.to(tl.float32)
    if RECTIFY:
        b_y = tl.where(b_y < 0, 0.0, b_y)
    if LARGEST is not None:
        b_y = tl.where(b_y > LARGEST, LARGEST, tl.where(b_y < -LARGEST, -LARGEST, b_y))
    tl.store(p_y + i_b * s_yb + o_m[:, None] * s_yc + o_n[None, :] * s_yn, b_y.to(p_y.dtype.element_ty), mask=m_y)
