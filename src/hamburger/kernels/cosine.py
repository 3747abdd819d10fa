"""Steps of soft k-means, shared by VQ and CD: tiled Triton kernels, and launches of the Hopper kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hamburger.kernels import common
from hamburger.kernels.common import add_parts, expand, own_columns, product, softmax, store_codes
from hamburger.kernels.launcher import launch
from hamburger.kernels.tiling import BN, StreamingGrid, TileSizes, can_copy_async, cdiv, power_of_two, row_width
from hamburger.linalg import EPS


@triton.jit
def products_and_squares(
    p_x, p_d, d, n, r, s_xd, s_xn, o_n,
    NORMS: tl.constexpr, KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """X^T D for a tile of columns, |x|^2 of each (if NORMS), |d|^2 of each basis.

    x: d n   d: d r   ->   BN R,  BN,  R
    """
    o_r = tl.arange(0, R)
    b_sum, b_xx, b_dd = tl.zeros([BN, R], tl.float32), tl.zeros([BN], tl.float32), tl.zeros([R], tl.float32)
    for i_d in range(0, d, BD):
        o_d = (i_d + tl.arange(0, BD)).to(tl.int64)
        # BN BD
        m_x = (o_n < n)[:, None] & (o_d < d)[None, :]
        b_x = tl.load(p_x + o_n[:, None] * s_xn + o_d[None, :] * s_xd, mask=m_x, other=0.0)
        # BD R
        m_d = (o_d < d)[:, None] & (o_r < r)[None, :]
        b_d = tl.load(p_d + o_d[:, None] * r + o_r[None, :], mask=m_d, other=0.0)
        b_sum = product(b_x, b_d, b_sum, KIND)
        b_dd += tl.sum(b_d * b_d, axis=0)
        if NORMS:
            b_xx += tl.sum(b_x.to(tl.float32) * b_x.to(tl.float32), axis=1)
    return b_sum, b_xx, b_dd


@triton.jit
def inverse_norms(b_xx, TINY: tl.constexpr):
    """1 / |x|, 0 for a zero column, which has no direction."""
    m_zero = b_xx < TINY
    return tl.where(m_zero, 0.0, tl.rsqrt(tl.where(m_zero, 1.0, b_xx)))


@triton.jit
def unit_scales(b_dd, CENTROIDS: tl.constexpr, EPS: tl.constexpr):
    """Factors that give bases unit length.

    CENTROIDS: for CD, which normalises centroids and normalises again for the cosine. Twice differs from once for an
    almost zero centroid.
    """
    b_norm = tl.sqrt(b_dd)
    b_scale = 1.0 / tl.maximum(b_norm, EPS)
    if CENTROIDS:
        b_scale = b_scale / tl.maximum(b_norm * b_scale, EPS)
    return b_scale


@triton.jit
def assign_kernel(
    p_x, p_d, p_scale, p_c, p_y, d, n, r, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, temperature,
    FIRST: tl.constexpr, CENTROIDS: tl.constexpr, EXPAND: tl.constexpr, EPS: tl.constexpr, TINY: tl.constexpr,
    KIND: tl.constexpr, COARSE: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Codes: softmax over r of cosine(D, X) / T; with EXPAND also Y = D C. Grid: b * tiles of n.

    x, y: b d n   d: b d r   c: b n r   A program owns BN columns.
    The norms of X do not change: FIRST leaves their inverses in scale (b n), later calls read them there. Y, which is
    rounded to the dtype of X at once, needs no more than COARSE products.
    """
    i_b, o_n = own_columns(n, BN)
    p_d, p_scale = p_d + i_b * d * r, p_scale + i_b * n + o_n
    b_sum, b_xx, b_dd = products_and_squares(
        p_x + i_b * s_xb, p_d, d, n, r, s_xd, s_xn, o_n, FIRST, KIND, R, BN, BD
    )  # fmt: skip
    if FIRST:
        b_scale = inverse_norms(b_xx, TINY)
        tl.store(p_scale, b_scale, mask=o_n < n)
    else:
        # BN
        b_scale = tl.load(p_scale, mask=o_n < n, other=0.0)
    b_unit = unit_scales(b_dd, CENTROIDS, EPS)
    b_c = softmax(b_sum * b_unit[None, :] * (b_scale / temperature)[:, None], r, R)
    store_codes(b_c, p_c + i_b * n * r, n, r, o_n, R)
    if EXPAND:
        expand(b_c, p_d, p_y + i_b * s_yb, d, n, r, s_yd, s_yn, o_n, COARSE, R, BN, BD)


@triton.jit
def centroids_kernel(
    p_sums, p_d, d, r, parts,
    EPS: tl.constexpr, FD: tl.constexpr, FR: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    """D = X C^T diag(C 1)^-1 from partial sums. Grid: b * tiles of d, tiles of r.

    A program owns a tile of D, FD x FR.   sums: b parts (d + 1) r, as `sums_kernel` leaves them   d: b d r
    """
    i_b = (tl.program_id(0) // tl.cdiv(d, FD)).to(tl.int64)
    o_d = (tl.program_id(0) % tl.cdiv(d, FD) * FD + tl.arange(0, FD)).to(tl.int64)
    o_r = tl.program_id(1) * FR + tl.arange(0, FR)
    p_sums += i_b * parts * (d + 1) * r
    b_xc = add_parts(p_sums, parts, d + 1, o_d, d, o_r, r, FD, FR, FP)
    b_mass = add_parts(p_sums, parts, d + 1, d + tl.arange(0, 1), d + 1, o_r, r, 1, FR, FP)
    m_d = (o_d < d)[:, None] & (o_r < r)[None, :]
    tl.store(p_d + i_b * d * r + o_d[:, None] * r + o_r[None, :], b_xc / (b_mass + EPS), mask=m_d)


# -- launches ----------------------------------------------------------------------------------------------------------


TINY = torch.finfo(torch.float32).tiny


def run_steps(
    x: Tensor, bases: Tensor, steps: int, temperature: float, t: TileSizes, *, unit: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """K times: assign every column, then move each basis to the mean of its columns. `unit`: as if then normalised.

    x: b d n   bases: b d r   ->   bases: b d r,  memory for codes: b n r,  1 / |x|: b n, empty memory where steps = 0
    """
    (b, d, n), r = x.shape, bases.shape[2]
    codes, scale = x.new_empty(b, n, r, dtype=torch.float32), x.new_empty(b, n, dtype=torch.float32)
    for step in range(steps):
        assign_columns(x, bases, scale, codes, None, temperature, t, first=step == 0, centroids=unit and step > 0)
        sums = common.sum_over_positions(x, codes, t, common.product_kind(x.dtype, fine=True), gram=False)
        bases = torch.empty(b, d, r, dtype=torch.float32, device=x.device)
        launch(
            # tiles of d on the first axis: the others end at 65,535, and d counts positions for the channel ham
            centroids_kernel, (b * cdiv(d, t.FD), cdiv(r, t.FR)),
            sums, bases, d, r, sums.shape[1],
            EPS=EPS, FD=t.FD, FR=t.FR, FP=min(t.FP, power_of_two(sums.shape[1])), num_warps=4,
        )  # fmt: skip
    return bases, codes, scale


def assign_columns(
    x: Tensor, bases: Tensor, scale: Tensor, codes: Tensor, y: Tensor | None, temperature: float, t: TileSizes,
    *, first: bool, centroids: bool = False,
) -> None:  # fmt: skip
    """Write the codes, and if there is a y also D C."""
    (b, d, n), r = x.shape, bases.shape[2]
    out = x if y is None else y
    launch(
        assign_kernel, (b * cdiv(n, t.BN),),
        x, bases, scale, codes, out, d, n, r, *x.stride(), *out.stride(), temperature,
        FIRST=first, CENTROIDS=centroids, EXPAND=y is not None, EPS=EPS, TINY=TINY,
        KIND=common.product_kind(x.dtype, fine=True),
        COARSE=common.product_kind(x.dtype), R=t.R, BN=t.BN, BD=t.BD, num_warps=t.warps,
    )  # fmt: skip


# -- Hopper: streaming steps, and the ridge projector of CD ------------------------------------------------------------


def streaming_bytes(D: int, R: int) -> int:
    """Shared memory: a tile of X, D and the codes in halves, or the codes and two stages of Y; and what sums need."""
    return 2 * (D * BN + 2 * D * R + max(2 * BN * R, BN * R + 2 * 64 * BN)) + 4096


def run_streaming_steps(
    x: Tensor, bases: Tensor, grid: StreamingGrid, steps: int, temperature: float,
    *, unit: bool, padded: bool = False, counters: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`run_steps` in one launch, without writing codes.   ->   bases: b d r,  1 / |x|: b n, empty memory if steps = 0

    `padded`: see `tiling.row_width`   `counters`: `common.zero_counters`, if the caller has them already.
    """
    b, _, n = x.shape
    scale = torch.empty(b, n, dtype=torch.float32, device=x.device)
    if not steps:
        return bases.clone(), scale
    new_bases = torch.empty_like(bases)
    sums = torch.empty(b, grid.programs, grid.D + 1, grid.R, dtype=torch.float32, device=x.device)
    if counters is None:
        counters = common.zero_counters(b, x.device)
    for first in range(0, b, grid.images):
        images = min(grid.images, b - first)
        _launch_streaming(
            x, bases, new_bases, scale, scale, x, sums, counters, grid, first, images, steps, temperature, padded,
            FIRST=True, CENTROIDS=unit, READOUT=False, Y=False, launch_cooperative_grid=True,
        )  # fmt: skip
    return new_bases, scale


def read_out_streaming(
    x: Tensor, bases: Tensor, scale: Tensor, codes: Tensor, y: Tensor | None, grid: StreamingGrid, temperature: float,
    *, first: bool, padded: bool,
) -> None:  # fmt: skip
    """Write the codes, and if there is a y also D C. `first`: no step has computed the scale."""
    # a read-out does not touch new bases, sums and counters: any tensors do
    _launch_streaming(
        x, bases, bases, scale, codes, x if y is None else y, scale, scale, grid, 0, x.shape[0], 0, temperature, padded,
        FIRST=first, CENTROIDS=False, READOUT=True, Y=y is not None,
    )  # fmt: skip


def _launch_streaming(
    x: Tensor, bases: Tensor, new_bases: Tensor, scale: Tensor, codes: Tensor, y: Tensor, sums: Tensor,
    counters: Tensor, grid: StreamingGrid, first: int, images: int, steps: int, temperature: float, padded: bool,
    **flags: bool,
) -> None:  # fmt: skip
    from hamburger.kernels.hopper.cosine_streaming import cosine_streaming_kernel

    (_, d, n), r = x.shape, bases.shape[2]
    launch(
        cosine_streaming_kernel, (grid.programs, images),
        x, bases, new_bases, scale, codes, y, sums, counters,
        first, d, n, row_width(x, padded=padded), r, steps, grid.programs, temperature,
        *x.stride(), *y.stride(), counters.stride(0),
        D=grid.D, R=grid.R, BN=BN, N_FAST=x.stride(2) == 1, ASYNC=can_copy_async(x, padded=padded), num_warps=8,
        **flags,
    )  # fmt: skip


# Below it the inverse, computed in float32 without row exchange, loses too many digits where two bases almost coincide.
MIN_BETA = 0.01


def has_ridge_kernel(steps: int, beta: float) -> bool:
    """Whether the ridge kernel applies; else torch solves. Without a step the bases need not have unit columns."""
    return steps > 0 and beta >= MIN_BETA


def launch_ridge_projector(centroids: Tensor, beta: float, grid: StreamingGrid) -> tuple[Tensor, Tensor]:
    """b d r   ->   the same with unit columns,  their transposed projector D (D^T D + beta I)^-1: b d r"""
    from hamburger.kernels.hopper.ridge import ridge_kernel

    b, d, r = centroids.shape
    bases, projector = torch.empty_like(centroids), torch.empty_like(centroids)
    launch(ridge_kernel, (cdiv(d, 64), b), centroids, bases, projector, d, r, beta, D=grid.D, R=grid.R, num_warps=8)
    return bases, projector
