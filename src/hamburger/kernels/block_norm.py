"""Batch norm of u = E C in training, forward and back, by sums over codes rather than over u. Letters: `common`.

u has rank r: its mean over positions is E times that of the codes, its variance is a quadratic form in E of their
covariance (r x r), and what the gradient needs of u are products of E as well. So u is never stored, and a pass over
its size is made only where the cotangent of y comes in. Formulas: docs/design/block.md.

In memory C is b n r; E, and what has its size, is b c r.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hamburger.kernels import common
from hamburger.kernels.block_launches import NormCorrection
from hamburger.kernels.common import own_part, product
from hamburger.kernels.dispatch import BatchNormState, NormParameters
from hamburger.kernels.launcher import launch
from hamburger.kernels.tiling import cdiv, split_positions, tile_sizes


@triton.jit
def load_rows(p_e, c, r, o_c, o_r):
    """A tile of E.   ->   M SR, in float32"""
    m_e = (o_c < c)[:, None] & (o_r < r)[None, :]
    return tl.load(p_e + o_c[:, None] * r + o_r[None, :], mask=m_e, other=0.0).to(tl.float32)


@triton.jit
def fold_times_moments(
    p_e, p_total, c, r, o_c, o_j, scale, CENTRED: tl.constexpr, FINE: tl.constexpr, M: tl.constexpr, SR: tl.constexpr,
):  # fmt: skip
    """E (C C^T scale), minus the product of the means if CENTRED.   e: c r   total: (r + 1) r   ->   M SR"""
    b_sum = tl.zeros([M, SR], tl.float32)
    # SR
    b_mean_j = tl.load(p_total + r * r + o_j, mask=o_j < r, other=0.0) * scale
    for i_r in range(0, r, SR):
        o_i = i_r + tl.arange(0, SR)
        # SR SR
        m_cc = (o_i < r)[:, None] & (o_j < r)[None, :]
        b_cc = tl.load(p_total + o_i[:, None] * r + o_j[None, :], mask=m_cc, other=0.0) * scale
        if CENTRED:
            b_mean_i = tl.load(p_total + r * r + o_i, mask=o_i < r, other=0.0) * scale
            b_cc -= b_mean_i[:, None] * b_mean_j[None, :]
        b_sum = product(load_rows(p_e, c, r, o_c, o_i), b_cc, b_sum, FINE)
    return b_sum


@triton.jit
def sample_statistics(
    p_e, p_total, c, n, r, o_c, FINE: tl.constexpr, M: tl.constexpr, SR: tl.constexpr,
):  # fmt: skip
    """Mean and variance over positions of some rows of one sample's E C.   e: c r   total: (r + 1) r   ->   M,  M"""
    b_mean = tl.zeros([M], tl.float32)
    b_var = tl.zeros([M], tl.float32)
    for i_r in range(0, r, SR):
        o_j = i_r + tl.arange(0, SR)
        b_e = load_rows(p_e, c, r, o_c, o_j)
        b_code = tl.load(p_total + r * r + o_j, mask=o_j < r, other=0.0) / n
        b_mean += tl.sum(b_e * b_code[None, :], axis=1)
        b_ec = fold_times_moments(p_e, p_total, c, r, o_c, o_j, 1.0 / n, True, FINE, M, SR)
        b_var += tl.sum(b_ec * b_e, axis=1)
    return b_mean, b_var


@triton.jit
def statistics_kernel(
    p_total, p_e, p_mean, p_var, p_running_mean, p_running_var, p_tracked, samples, c, n, r, momentum,
    FINE: tl.constexpr, M: tl.constexpr, SR: tl.constexpr,
):  # fmt: skip
    """Mean and variance of each row of E C, over samples and positions, and the running ones. Grid: tiles of c.

    A program owns M rows. Samples are joined one by one, each by its mean and variance.
    total: b (r + 1) r, C C^T above C 1   e: b c r   mean, var (biased), running ones: c   tracked: 1
    """
    o_c = tl.program_id(0) * M + tl.arange(0, M)
    m_c = o_c < c
    b_mean = tl.zeros([M], tl.float32)
    b_var = tl.zeros([M], tl.float32)
    for i_b in range(0, samples):
        b_own_mean, b_own_var = sample_statistics(p_e, p_total, c, n, r, o_c, FINE, M, SR)
        b_step = b_own_mean - b_mean
        b_mean += b_step / (i_b + 1)
        b_var += (b_own_var - b_var) / (i_b + 1) + b_step * b_step * (i_b / ((i_b + 1.0) * (i_b + 1.0)))
        p_e += c * r
        p_total += (r + 1) * r
    b_var = tl.where(b_var < 0, 0.0, b_var)  # rounding; a NaN stays
    tl.store(p_mean + o_c, b_mean, mask=m_c)
    tl.store(p_var + o_c, b_var, mask=m_c)
    b_old = tl.load(p_running_mean + o_c, mask=m_c, other=0.0).to(tl.float32)
    b_new = b_old + momentum * (b_mean - b_old)
    tl.store(p_running_mean + o_c, b_new.to(p_running_mean.dtype.element_ty), mask=m_c)
    b_old = tl.load(p_running_var + o_c, mask=m_c, other=0.0).to(tl.float32)
    count = samples * (1.0 * n)
    b_new = b_old + momentum * (b_var * (count / (count - 1)) - b_old)  # torch's running variance is unbiased
    tl.store(p_running_var + o_c, b_new.to(p_running_var.dtype.element_ty), mask=m_c)
    if tl.program_id(0) == 0:
        tl.store(p_tracked, tl.load(p_tracked) + 1)


@triton.jit
def relu_backward_kernel(
    p_dy, p_y, p_c, p_ds, p_sums, c, n, r, length, s_db, s_dc, s_dn, s_yb, s_yc, s_yn, s_sb, s_sc, s_sn,
    RECTIFY: tl.constexpr, KIND: tl.constexpr, SD: tl.constexpr, SR: tl.constexpr, SN: tl.constexpr,
):  # fmt: skip
    """dS, the cotangent before the last ReLU, and partial sums that the norm's gradient needs.

    dy, y, ds: b c n   c: b n r   dS is written where RECTIFY, by the programs of the first tile of r; else it is dY.
    sums: b parts (c r + c), dS C^T and after it dS 1.
    Grid: b * parts, tiles of c, tiles of r.
    """
    i_bs, i_b, begin, end = own_part(n, length)
    o_c = (tl.program_id(1) * SD + tl.arange(0, SD)).to(tl.int64)
    o_r = tl.program_id(2) * SR + tl.arange(0, SR)
    p_dy += i_b * s_db + o_c[:, None] * s_dc
    p_y += i_b * s_yb + o_c[:, None] * s_yc
    p_ds += i_b * s_sb + o_c[:, None] * s_sc
    p_c += i_b * n * r
    b_sum = tl.zeros([SD, SR], tl.float32)
    b_mass = tl.zeros([SD], tl.float32)
    for i_n in range(begin, end, SN):
        o_n = (i_n + tl.arange(0, SN)).to(tl.int64)
        # SD SN
        m_s = (o_c < c)[:, None] & (o_n < end)[None, :]
        b_s = tl.load(p_dy + o_n[None, :] * s_dn, mask=m_s, other=0.0)
        if RECTIFY:
            b_y = tl.load(p_y + o_n[None, :] * s_yn, mask=m_s, other=0.0)
            b_s = tl.where(b_y <= 0, 0.0, b_s)
            if tl.program_id(2) == 0:
                tl.store(p_ds + o_n[None, :] * s_sn, b_s.to(p_ds.dtype.element_ty), mask=m_s)
        if KIND == "bf16":
            b_s = b_s.to(tl.bfloat16)  # the mean that is subtracted must be that of the rounded values
        # SN SR
        b_c = tl.load(p_c + o_n[:, None] * r + o_r[None, :], mask=(o_n < end)[:, None] & (o_r < r)[None, :], other=0.0)
        b_sum = product(b_s, b_c, b_sum, KIND)
        b_mass += tl.sum(b_s.to(tl.float32), axis=1)
    m_sum = (o_c < c)[:, None] & (o_r < r)[None, :]
    p_sums += i_bs * c * (r + 1)
    tl.store(p_sums + o_c[:, None] * r + o_r[None, :], b_sum, mask=m_sum)
    if tl.program_id(2) == 0:
        tl.store(p_sums + c * r + o_c, b_mass, mask=o_c < c)


@triton.jit
def sums_over_samples(
    p_dsc, p_e, samples, c, r, o_c, M: tl.constexpr, SR: tl.constexpr,
):  # fmt: skip
    """Of some channels, over samples and positions.   dsc: b (c r + c)   e: b c r   ->   sum(dS): M,  sum(dS u): M"""
    m_c = o_c < c
    b_ds = tl.zeros([M], tl.float32)
    b_dsu = tl.zeros([M], tl.float32)
    for _ in range(0, samples):
        b_ds += tl.load(p_dsc + c * r + o_c, mask=m_c, other=0.0)
        for i_r in range(0, r, SR):
            o_r = i_r + tl.arange(0, SR)
            b_e = load_rows(p_e, c, r, o_c, o_r)
            b_dsu += tl.sum(load_rows(p_dsc, c, r, o_c, o_r) * b_e, axis=1)
        p_dsc += c * (r + 1)
        p_e += c * r
    return b_ds, b_dsu


@triton.jit
def store_mix(p_mix, p_e, b_right, c, r, o_c, o_r, FINE: tl.constexpr, SR: tl.constexpr):
    """Write some columns of E^T times the matrix `right`.   mix: r r   e: c r   right: M SR"""
    for i_j in range(0, r, SR):
        o_j = i_j + tl.arange(0, SR)
        b_left = tl.trans(load_rows(p_e, c, r, o_c, o_j))
        b_mix = product(b_left, b_right, tl.zeros([SR, SR], tl.float32), FINE)
        m_mix = (o_j < r)[:, None] & (o_r < r)[None, :]
        tl.store(p_mix + o_j[:, None] * r + o_r[None, :], b_mix, mask=m_mix)


@triton.jit
def norm_backward_kernel(
    p_dsc, p_total, p_e, p_mean, p_var, p_gamma, p_scaled, p_de, p_mix, p_dgamma, p_dbeta,
    samples, c, n, r, eps, FINE: tl.constexpr, M: tl.constexpr, SR: tl.constexpr,
):  # fmt: skip
    """From dS C^T and dS 1 to all of the norm's gradient that does not grow with n. Grid: tiles of c.

    A program owns M channels. dsc: b (c r + c), dS C^T and after it dS 1   total: b (r + 1) r, C C^T and after it C 1
    e: b c r   mean, var, gamma, dgamma, dbeta: c

    With a = gamma / sigma, h = sum(dS u') / (N sigma^2) for u' = u - mean, and g = dS 1 / N, the cotangent of u is
    dU = a (dS - g - h u'). Written: E' = a E, dE = dU C^T (both b c r), and each tile's partial sum of what E'^T dU / a
    needs next to E'^T dS: E^T diag(h) E' and, in the row after it, E'^T (g - h mean).   mix: b tiles (r + 1) r
    """
    o_c = tl.program_id(0) * M + tl.arange(0, M)
    m_c = o_c < c
    b_ds, b_dsu = sums_over_samples(p_dsc, p_e, samples, c, r, o_c, M, SR)
    count = samples * (1.0 * n)
    b_mean = tl.load(p_mean + o_c, mask=m_c, other=0.0)
    b_inverse = tl.rsqrt(tl.load(p_var + o_c, mask=m_c, other=1.0) + eps)
    b_a = b_inverse * tl.load(p_gamma + o_c, mask=m_c, other=0.0).to(tl.float32)
    b_dgamma = (b_dsu - b_mean * b_ds) * b_inverse
    tl.store(p_dbeta + o_c, b_ds.to(p_dbeta.dtype.element_ty), mask=m_c)
    tl.store(p_dgamma + o_c, b_dgamma.to(p_dgamma.dtype.element_ty), mask=m_c)
    b_g = b_ds / count
    b_h = b_dgamma * b_inverse / count
    b_rest = b_g - b_h * b_mean
    p_mix += tl.program_id(0) * ((r + 1) * r)
    for _ in range(0, samples):
        for i_r in range(0, r, SR):
            o_r = i_r + tl.arange(0, SR)
            m_e = m_c[:, None] & (o_r < r)[None, :]
            o_e = o_c[:, None] * r + o_r[None, :]
            b_scaled = (load_rows(p_e, c, r, o_c, o_r) * b_a[:, None]).to(p_scaled.dtype.element_ty)
            tl.store(p_scaled + o_e, b_scaled, mask=m_e)
            b_scaled = b_scaled.to(tl.float32)  # rounded as stored, so that the terms cancel
            b_code = tl.load(p_total + r * r + o_r, mask=o_r < r, other=0.0)
            b_de = load_rows(p_dsc, c, r, o_c, o_r) - b_rest[:, None] * b_code[None, :]
            b_de -= b_h[:, None] * fold_times_moments(p_e, p_total, c, r, o_c, o_r, 1.0, False, FINE, M, SR)
            tl.store(p_de + o_e, (b_a[:, None] * b_de).to(p_de.dtype.element_ty), mask=m_e)
            tl.store(p_mix + r * r + o_r, tl.sum(b_scaled * b_rest[:, None], axis=0), mask=o_r < r)
            b_right = b_scaled * b_h[:, None]  # h on the right, where `product` keeps the digits of a float32
            store_mix(p_mix, p_e, b_right, c, r, o_c, o_r, FINE, SR)
        p_dsc += c * (r + 1)
        p_total += (r + 1) * r
        p_e += c * r
        p_scaled += c * r
        p_de += c * r
        p_mix += tl.num_programs(0) * ((r + 1) * r)


# -- launches ----------------------------------------------------------------------------------------------------------


# Of a tile of channels: each adds up all partial sums of its rows, so there should be many; a multiple of the 16 that
# the matrix units take.
CHANNELS = 16

ROWS = 64  # channels of a program that sums over positions and waits for memory: small, for several at a time


class BatchStatistics(NamedTuple):
    """Of u = E C over samples and positions, and of the codes: C C^T and C 1 of each sample."""

    mean: Tensor  # c
    var: Tensor  # c, biased
    total: Tensor  # b (r + 1) r


def batch_statistics(fold: Tensor, codes: Tensor, batch: BatchNormState, dtype: torch.dtype) -> BatchStatistics:
    """Mean and variance of E C; updates the running ones.   fold: b c r   codes: b n r"""
    (b, c, r), n = fold.shape, codes.shape[1]
    # with the codes in the place of X, the sums over positions are C C^T above C 1
    sums = common.sum_over_positions(
        codes.mT, codes, tile_sizes(r, n, r, dtype), common.product_kind(dtype), gram=False
    )
    total = common.add_partial_sums(sums) if sums.shape[1] > 1 else sums[:, 0]
    mean, var = sums.new_empty(c), sums.new_empty(c)
    norm = batch.norm
    launch(
        statistics_kernel, (cdiv(c, CHANNELS),),
        total, fold, mean, var, norm.mean, norm.var, batch.tracked, b, c, n, r, batch.momentum,
        FINE=_fine_kind(dtype), M=CHANNELS, SR=_rank_tile(r), num_warps=4,
    )  # fmt: skip
    return BatchStatistics(mean, var, total)


class NormGradients(NamedTuple):
    """Gradients through ReLU, skip and norm. `ds` is the cotangent of the sum with the skip."""

    ds: Tensor  # b c n
    scaled: Tensor  # E': b c r
    dfold: Tensor  # dE: b c r, float32
    correction: NormCorrection
    dgamma: Tensor  # c
    dbeta: Tensor  # c


def norm_backward(
    dy: Tensor, y: Tensor | None, fold: Tensor, codes: Tensor, statistics: BatchStatistics, norm: NormParameters,
    dtype: torch.dtype,
) -> NormGradients:  # fmt: skip
    """dy: b c n   y: b c n, or None without a ReLU   fold: b c r   codes: b n r"""
    (b, c, n), r = dy.shape, fold.shape[2]
    t = tile_sizes(c, n, r, dtype)
    tiles = cdiv(c, ROWS), cdiv(r, t.SR)
    length, parts = split_positions(n, b * tiles[0] * tiles[1], t.SN)
    ds = dy if y is None else torch.empty_like(y)
    sums = dy.new_empty(b, parts, c * (r + 1), dtype=torch.float32)
    mask = dy if y is None else y
    launch(
        relu_backward_kernel, (b * parts, *tiles),
        dy, mask, codes, ds, sums, c, n, r, length, *dy.stride(), *mask.stride(), *ds.stride(),
        RECTIFY=y is not None, KIND=common.product_kind(dtype), SD=ROWS, SR=t.SR, SN=t.SN, num_warps=4,
    )  # fmt: skip
    rows = cdiv(c, CHANNELS)
    assert norm.weight is not None
    scaled, dfold = torch.empty_like(fold), torch.empty_like(fold, dtype=torch.float32)
    mix = sums.new_empty(b, rows, r + 1, r)
    dgamma, dbeta = torch.empty_like(norm.weight), torch.empty_like(norm.weight)
    launch(
        norm_backward_kernel, (rows,),
        common.add_partial_sums(sums), statistics.total, fold, statistics.mean, statistics.var, norm.weight,
        scaled, dfold, mix,
        dgamma, dbeta, b, c, n, r, norm.eps, FINE=_fine_kind(dtype), M=CHANNELS, SR=_rank_tile(r), num_warps=4,
    )  # fmt: skip
    return NormGradients(ds, scaled, dfold, NormCorrection(codes, common.add_partial_sums(mix)), dgamma, dbeta)


def _rank_tile(r: int) -> int:
    return 16 if r <= 16 else 32 if r <= 32 else 64


def _fine_kind(dtype: torch.dtype) -> str:
    """Sums over codes keep all digits of a float32, because means are subtracted. A bfloat16 E is exact on the left."""
    if dtype == torch.bfloat16:
        return "tf32x2"
    return "ieee" if common.product_kind(dtype) == "ieee" else "tf32x3"
