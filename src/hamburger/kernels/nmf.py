"""NMF by kernels: the values of `hams.nmf`, resident or streaming on Hopper, else by tiles."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hamburger.kernels import common, nmf_hopper
from hamburger.kernels.common import add_parts, expand, load_codes, own_columns, product, project, softmax, store_codes
from hamburger.kernels.launcher import device_of, launch, try_variant
from hamburger.kernels.nmf_hopper import NMFFactors
from hamburger.kernels.tiling import (
    cdiv,
    power_of_two,
    resident_grid,
    streaming_grid,
    tile_sizes,
)

# -- kernels -----------------------------------------------------------------------------------------------------------


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
def codes_kernel(
    p_x, p_d, p_g, p_c, p_last, p_ratio, p_y, d, n, r, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, eps,
    FIRST: tl.constexpr, KEEP: tl.constexpr, EXPAND: tl.constexpr,
    KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One update of the codes, from `c` into `last`; FIRST computes those before it. Grid: b * tiles of n.

    x, y: b d n   d: b d r   g (D^T D): b r r   c, last, ratio (Q): b n r   A program owns BN columns.
    It is linear in X: C = Q * D^T X with Q = C / (D^T D C + eps) from before it. For the read-out: the gradient needs Q
    (KEEP), and EXPAND writes Y = D C.
    """
    i_b, o_n = own_columns(n, BN)
    p_d, p_g, p_c = p_d + i_b * d * r, p_g + i_b * r * r, p_c + i_b * n * r
    b_xd = project(p_x + i_b * s_xb, p_d, d, n, r, s_xd, s_xn, o_n, KIND, R, BN, BD)
    if FIRST:
        store_codes(softmax(b_xd, r, R), p_c, n, r, o_n, R)
        tl.debug_barrier()  # `ratio` reads them back, each thread what others wrote
    b_ratio = ratio(p_c, p_g, n, r, o_n, eps, KIND, R, BN, BK)
    if KEEP:
        store_codes(b_ratio.to(p_ratio.dtype.element_ty), p_ratio + i_b * n * r, n, r, o_n, R)
    b_c = b_ratio * b_xd
    tl.debug_barrier()  # `last` may be `c`: no thread overwrites what another still has to read
    store_codes(b_c.to(p_last.dtype.element_ty), p_last + i_b * n * r, n, r, o_n, R)
    if EXPAND:
        expand(b_c, p_d, p_y + i_b * s_yb, d, n, r, s_yd, s_yn, o_n, KIND, R, BN, BD)


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


# -- solve and gradient ------------------------------------------------------------------------------------------------


def solve_factors(
    x: Tensor, bases: Tensor, steps: int, eps: float,
    *, keep: bool, product: bool, dtype: torch.dtype = torch.float32, padded: bool = False,
    counters: Tensor | None = None,
) -> NMFFactors:  # fmt: skip
    """K steps from softmax codes, and the read-out.   x: b d n   bases: b d r, float32, contiguous

    `keep`: also return Q. `product`: also return D C. `dtype`: of the codes. `padded`: see `tiling.row_width`.
    `counters`: `common.zero_counters`, if the caller has them already.
    """
    options: dict[str, Any] = {
        "keep": keep, "product": product, "dtype": dtype, "padded": padded, "counters": counters
    }  # fmt: skip
    with device_of(x):
        resident = resident_grid(x, bases.shape[2])
        if resident is not None:
            solved = try_variant(
                "resident NMF", lambda: nmf_hopper.solve_resident(x, bases, resident, steps, eps, **options)
            )
            if solved is not None:
                return solved
        streaming = streaming_grid(x, bases.shape[2], nmf_hopper.streaming_bytes)
        if streaming is not None:
            solved = try_variant(
                "streaming NMF", lambda: nmf_hopper.solve_streaming(x, bases, streaming, steps, eps, **options)
            )
            if solved is not None:
                return solved
        return _solve_tiled(x, bases, steps, eps, keep, product, dtype)


def _solve_tiled(
    x: Tensor, bases: Tensor, steps: int, eps: float, keep: bool, product: bool, dtype: torch.dtype = torch.float32
) -> NMFFactors:
    (b, d, n), r = x.shape, bases.shape[2]
    t, kind = tile_sizes(d, n, r, x.dtype), common.product_kind(x.dtype)
    codes = x.new_empty(b, n, r, dtype=torch.float32)

    def update_codes(step: int, last: Tensor, ratio: Tensor | None = None, y: Tensor | None = None) -> None:
        out, of_ratio = x if y is None else y, codes if ratio is None else ratio
        launch(
            codes_kernel, (b * cdiv(n, t.BN),),
            x, bases, gram, codes, last, of_ratio, out, d, n, r, *x.stride(), *out.stride(), eps,
            FIRST=step == 0, KEEP=ratio is not None, EXPAND=y is not None,
            KIND=kind, R=t.R, BN=t.BN, BD=t.BD, BK=t.BK, num_warps=t.warps,
        )  # fmt: skip

    gram = common.gram_matrix(bases, x.dtype, t)
    for step in range(steps):
        update_codes(step, codes)
        sums = common.sum_over_positions(x, codes, t, kind, gram=True)
        old, bases = bases, torch.empty_like(bases)  # not in place: other programs still read the old rows
        parts = power_of_two(sums.shape[1])
        launch(
            # tiles of d on the first axis: the others end at 65,535, and d counts positions for the channel ham
            bases_kernel, (b * cdiv(d, t.FD), cdiv(r, t.FR)),
            old, sums, bases, d, r, sums.shape[1], eps, KIND=common.factor_product_kind(x.dtype),
            FD=t.FD, FR=t.FR, FK=t.FK, FP=min(t.FP, parts), FPK=min(t.FPK, parts), num_warps=4,
        )  # fmt: skip
        gram = common.gram_matrix(bases, x.dtype, t)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty_like(codes, dtype=common.saved_dtype(x.dtype)) if keep else None
    last = codes if dtype == codes.dtype else torch.empty_like(codes, dtype=dtype)
    update_codes(steps, last, ratio, y)
    return NMFFactors(bases if steps else bases.clone(), last, y, ratio)
