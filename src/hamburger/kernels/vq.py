"""Soft VQ by Triton kernels: the values of `hams.vq`, by the streaming Hopper kernels or tiles."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hamburger.kernels import common, cosine
from hamburger.kernels.common import load_codes, own_columns, product, project, softmax
from hamburger.kernels.cosine import inverse_norms, products_and_squares, unit_scales
from hamburger.kernels.launcher import device_of, launch, try_variant
from hamburger.kernels.tiling import StreamingGrid, cdiv, streaming_grid, tile_sizes
from hamburger.linalg import EPS


@triton.jit
def pull_back_kernel(
    p_x, p_dy, p_d, p_dc, p_dx, p_sums, d, n, r,
    s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_gb, s_gd, s_gn, temperature,
    HAS_DY: tl.constexpr, HAS_DC: tl.constexpr, SUMS: tl.constexpr,
    CONSTANT: tl.constexpr, EPS: tl.constexpr, TINY: tl.constexpr,
    KIND: tl.constexpr, COARSE: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The cotangent of X from that of Y = D C (HAS_DY), that of C (HAS_DC), or both. Grid: b * tiles of n.

    A program owns BN columns.   x, dy, dx: b d n   d: b d r   dc: b n r
    The codes are recomputed from X and D, not saved. With u = d / |d|, cos = u^T x / |x| and the cotangent a of
    cos, dx = (sum_r a u - (sum_r a cos) x / |x|) / |x|; CONSTANT norms leave out the second term.
    With SUMS the sums of dx over each program's columns are written to sums: b * tiles of n, d.
    """
    i_b, o_n = own_columns(n, BN)
    p_x, p_d, p_dx = p_x + i_b * s_xb, p_d + i_b * d * r, p_dx + i_b * s_gb
    b_sum, b_xx, b_dd = products_and_squares(p_x, p_d, d, n, r, s_xd, s_xn, o_n, True, KIND, R, BN, BD)
    b_scale, b_unit = inverse_norms(b_xx, TINY), unit_scales(b_dd, False, EPS)
    b_cos = b_sum * b_unit[None, :] * b_scale[:, None]
    b_c = softmax(b_cos / temperature, r, R)
    b_dc = tl.zeros([BN, R], tl.float32)
    if HAS_DY:
        b_dc += project(p_dy + i_b * s_yb, p_d, d, n, r, s_yd, s_yn, o_n, COARSE, R, BN, BD)
    if HAS_DC:
        b_dc += load_codes(p_dc + i_b * n * r, n, r, o_n, R)
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


# -- solve and gradient ------------------------------------------------------------------------------------------------


def solve_factors(
    x: Tensor, bases: Tensor, steps: int, temperature: float, _constant_norms: float = 0.0,
    *, keep: bool = False, product: bool, dtype: torch.dtype = torch.float32, padded: bool = False,
    counters: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, None]:  # fmt: skip
    """K steps and the read-out.   x: b d n   bases: b d r, float32, contiguous

    ->   bases: b d r,  codes: b n r of `dtype`,  D C: b d n if `product`
    `padded`, `counters`: see `cosine.run_streaming_steps`.
    There is nothing to `keep`: `input_cotangent` recomputes the codes from x.
    """
    with device_of(x):
        grid = streaming_grid(x, bases.shape[2], cosine.streaming_bytes)
        if grid is not None:
            solved = try_variant(
                "streaming VQ",
                lambda: _solve_streaming(x, bases, grid, steps, temperature, product, dtype, padded, counters),
            )
            if solved is not None:
                return *solved, None
        return *_solve_tiled(x, bases, steps, temperature, product, dtype), None


def _solve_streaming(
    x: Tensor, bases: Tensor, grid: StreamingGrid, steps: int, temperature: float, product: bool, dtype: torch.dtype,
    padded: bool, counters: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    bases, scale = cosine.run_streaming_steps(
        x, bases, grid, steps, temperature, unit=False, padded=padded, counters=counters
    )
    codes = x.new_empty(*scale.shape, bases.shape[2], dtype=dtype)
    y = torch.empty_like(x) if product else None
    cosine.read_out_streaming(x, bases, scale, codes, y, grid, temperature, first=steps == 0, padded=padded)
    return bases, codes, y


def _solve_tiled(
    x: Tensor, bases: Tensor, steps: int, temperature: float, product: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    _, d, n = x.shape
    t = tile_sizes(d, n, bases.shape[2], x.dtype)
    new_bases, codes, scale = cosine.run_steps(x, bases, steps, temperature, t, unit=False)
    y = torch.empty_like(x) if product else None
    last = codes if dtype == codes.dtype else torch.empty_like(codes, dtype=dtype)
    cosine.assign_columns(x, new_bases, scale, last, y, temperature, t, first=steps == 0)
    return new_bases if steps else bases.clone(), last, y


def input_cotangent(
    x: Tensor, dy: Tensor | None, dc: Tensor | None, bases: Tensor, temperature: float, constant_norms: float,
    sums: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The cotangent of x from those of D C and of the codes, or of one of them.   x, dy: b d n   dc: b n r   ->   b d n

    sums: from `block_launches.cotangent_sums`; receives the sums of the result over parts of the positions: b * parts d
    """
    (b, d, n), r = x.shape, bases.shape[2]
    t = tile_sizes(d, n, r, x.dtype)
    dx = torch.empty_like(x)
    dy_memory, dc_memory = dx if dy is None else dy, bases if dc is None else dc  # unused if None
    launch(
        pull_back_kernel, (b * cdiv(n, t.BN),),
        x, dy_memory, bases, dc_memory, dx, bases if sums is None else sums, d, n, r,
        *x.stride(), *dy_memory.stride(), *dx.stride(), temperature,
        HAS_DY=dy is not None, HAS_DC=dc is not None, SUMS=sums is not None,
        CONSTANT=bool(constant_norms), EPS=EPS, TINY=cosine.TINY,
        KIND=common.product_kind(x.dtype, fine=True), COARSE=common.product_kind(x.dtype),
        R=t.R, BN=t.BN, BD=t.BD, num_warps=t.warps,
    )  # fmt: skip
    return dx
