"""Soft CD by Triton kernels: the values of `hams.cd`, by the streaming Hopper kernels or tiles."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hamburger.kernels import common, cosine
from hamburger.kernels.common import expand, load_codes, own_columns, project, store_codes
from hamburger.kernels.launcher import device_of, launch
from hamburger.kernels.tiling import cdiv, streaming_grid, tile_sizes, try_cooperative
from hamburger.linalg import normalize_columns, ridge_projector
from hamburger.tensors import full_precision


@triton.jit
def readout_kernel(
    p_x, p_in, p_out, p_more, p_c, p_y, d, n, r, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn,
    MORE: tl.constexpr, STORE: tl.constexpr, EXPAND: tl.constexpr,
    KIND: tl.constexpr, COARSE: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """C = A^T X, with EXPAND also Y = B C, for two dictionaries A (in) and B (out), both b d r. Grid: b * tiles of n.

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


# -- solve and gradient ------------------------------------------------------------------------------------------------


def solve_factors(
    x: Tensor, bases: Tensor, steps: int, temperature: float, beta: float,
    *, keep: bool, product: bool, dtype: torch.dtype = torch.float32, counters: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """K steps and the ridge read-out.   x: b d n   bases: b d r, float32, contiguous

    ->   bases: b d r, with unit columns if steps > 0,  codes: b n r of `dtype`,  D C: b d n if `product`,  and if
    `keep` what the gradient needs next to D: the transposed projector, b d r
    `counters`: see `cosine.run_streaming_steps`.
    """
    (b, d, n), r = x.shape, bases.shape[2]
    with device_of(x):
        grid, streamed = streaming_grid(x, r, cosine.streaming_bytes), None
        if grid is not None:
            streamed = try_cooperative(
                lambda: cosine.run_streaming_steps(x, bases, grid, steps, temperature, unit=True, counters=counters), x
            )
        if streamed is not None:
            centroids, _ = streamed
        else:
            centroids, *_ = cosine.run_steps(x, bases, steps, temperature, tile_sizes(d, n, r, x.dtype), unit=True)
        if grid is not None and cosine.has_ridge_kernel(steps, beta):
            new_bases, projector = cosine.launch_ridge_projector(centroids, beta, grid)
        else:
            new_bases = normalize_columns(centroids) if steps else bases.clone()
            with full_precision(x.device.type):  # r x d does not grow with n: torch's solve is fast enough
                projector = ridge_projector(new_bases, beta).mT.contiguous()
        codes = x.new_empty(b, n, r, dtype=dtype)
        y = torch.empty_like(x) if product else None
        _launch_readout(x, projector, new_bases, None, codes, y)
    return new_bases, codes, y, projector if keep else None


def input_cotangent(dy: Tensor, dc: Tensor | None, bases: Tensor, projector: Tensor) -> Tensor:
    """The cotangent of x from those of D C and of the codes.   dy: b d n   dc: b n r   ->   b d n"""
    dx = torch.empty_like(dy)
    _launch_readout(dy, bases, projector, dc, None, dx)
    return dx


def _launch_readout(
    x: Tensor, into: Tensor, out: Tensor, more: Tensor | None, codes: Tensor | None, y: Tensor | None
) -> None:
    (b, d, n), r = x.shape, into.shape[2]
    t = tile_sizes(d, n, r, x.dtype)
    product = x if y is None else y
    with device_of(x):
        launch(
            readout_kernel, (b * cdiv(n, t.BN),),
            x, into, out, into if more is None else more, into if codes is None else codes, product,
            d, n, r, *x.stride(), *product.stride(),
            MORE=more is not None, STORE=codes is not None, EXPAND=y is not None,
            KIND=common.product_kind(x.dtype, fine=True), COARSE=common.product_kind(x.dtype),
            R=t.R, BN=t.BN, BD=t.BD, num_warps=t.warps,
        )  # fmt: skip
