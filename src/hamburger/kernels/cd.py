"""Soft CD by Triton kernels: the values of `hams.cd`, by the streaming Hopper kernels or tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.kernels import common, cosine
from hamburger.kernels.launcher import device_of, try_variant
from hamburger.kernels.tiling import streaming_grid, tile_sizes
from hamburger.linalg import normalize_columns, ridge_projector
from hamburger.tensors import full_precision


def solve_factors(
    x: Tensor, bases: Tensor, steps: int, temperature: float, beta: float,
    *, keep: bool, product: bool, dtype: torch.dtype = torch.float32, padded: bool = False,
    counters: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """K steps and the ridge read-out.   x: b d n   bases: b d r, float32, contiguous

    ->   bases: b d r, with unit columns if steps > 0,  codes: b n r of `dtype`,  D C: b d n if `product`,  and if
    `keep` what the gradient needs next to D: the transposed projector, b d r
    `padded`, `counters`: see `cosine.run_streaming_steps`.
    """
    (b, d, n), r = x.shape, bases.shape[2]
    with device_of(x):
        grid, streamed = streaming_grid(x, r, cosine.streaming_bytes), None
        if grid is not None:
            streamed = try_variant(
                "streaming CD",
                lambda: cosine.run_streaming_steps(
                    x, bases, grid, steps, temperature, unit=True, padded=padded, counters=counters
                ),
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
        common.launch_readout(x, projector, new_bases, None, codes, y)
    return new_bases, codes, y, projector if keep else None
