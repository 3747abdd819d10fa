"""Launch the block's kernels: tiles, memory, grids. Nothing here is differentiated."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.kernels import block_kernels, common
from hamburger.kernels.dispatch import NormParameters
from hamburger.kernels.launcher import launch
from hamburger.kernels.tiling import TARGET_PROGRAMS, TileSizes, cdiv, power_of_two, split_positions, tile_sizes
from hamburger.linalg import EPS
from hamburger.tensors import full_precision

HALF_MAX = torch.finfo(torch.float16).max

# Tile of `finish_kernel`, which is memory-bound: small, so that several programs run on a multiprocessor.
ROWS, COLUMNS = 64, 128


def empty_like(x: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Memory for b rows n, positions or channels next to each other as in x: b c n."""
    b, _, n = x.shape
    if x.stride(1) == 1:
        return x.new_empty(b, n, rows, dtype=dtype).mT
    return x.new_empty(b, rows, n, dtype=dtype)


def empty_padded(x: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Memory for Z = W X where W has that many rows: what the solves read fastest.   x: b c n   ->   b rows width

    Positions are next to each other, and rows begin at multiples of 16 entries. Exact float32 is laid out as x, without
    padding: cuBLAS writes it.
    """
    if uses_cublas(dtype):
        return empty_like(x, rows, dtype)
    return x.new_empty(x.shape[0], rows, cdiv(x.shape[2], 16) * 16, dtype=dtype)


class PreparedInputs(NamedTuple):
    """W_l in the dtype of the products, initial bases for every sample, counters at zero."""

    lower: Tensor
    initial: Tensor
    counters: Tensor


def prepare_inputs(lower: Tensor, initial: Tensor, b: int, dtype: torch.dtype, *, unit: bool) -> PreparedInputs:
    """One launch instead of four torch operations.   lower: d c   initial: (b or 1) d r, float32

    `unit`: the columns of `initial` are drawn, and still to be normalised.
    """
    rounds = dtype == torch.bfloat16 and lower.dtype != dtype
    lower = lower.contiguous()
    rounded = torch.empty_like(lower, dtype=dtype) if rounds else lower
    counters = torch.empty(b, common.COUNTERS_PER_IMAGE, dtype=torch.int32, device=lower.device)
    samples, d, r = initial.shape
    makes = unit or samples < b
    bases = initial.new_empty(b, d, r) if makes else initial
    block, width = 4096, 8
    grid = (cdiv(lower.numel(), block) if rounds else 0) + (b * cdiv(r, width) if makes else 0)
    launch(
        block_kernels.prepare_kernel, (max(1, grid),),
        lower, rounded, initial, bases, counters, lower.numel(), d, r, counters.numel(), d * r if samples == b else 0,
        EPS, ROUND=rounds, MAKE=makes, UNIT=unit, BLOCK=block, D=power_of_two(d), FR=width, num_warps=8,
    )  # fmt: skip
    return PreparedInputs(rounded, bases, counters)


def apply_bread(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *, out: torch.dtype, rectify: bool,
    padded: bool = False,
) -> Tensor:  # fmt: skip
    """W x + bias by products of that dtype, then a ReLU.   x: b c n   weight: d c   bias: d

    ->   b d n, or if `padded` zeros up to the width of `empty_padded`
    """
    if uses_cublas(dtype):
        return _cublas_bread(x, weight, bias, out, rectify)
    z = (empty_padded if padded else empty_like)(x, weight.shape[0], out)
    _launch_bread(x, weight, bias, None, z, dtype, rectify)
    return z


def bread_backward(ds: Tensor, dz: Tensor, weight: Tensor, dx: Tensor, dtype: torch.dtype) -> None:
    """dS + W^T dZ into dx, which may be dS.   ds, dx: b c n   dz: b d n   weight: d c"""
    _launch_bread(dz, weight.mT, None, ds, dx, dtype, rectify=False)


def uses_cublas(dtype: torch.dtype) -> bool:
    """Whether products are exact float32, which cuBLAS computes."""
    return common.product_kind(dtype) == "ieee" and not common.INTERPRETED


def _launch_bread(
    x: Tensor, weight: Tensor, bias: Tensor | None, more: Tensor | None, z: Tensor, dtype: torch.dtype, rectify: bool
) -> None:
    (b, c, n), d, width = x.shape, weight.shape[0], z.shape[2]
    kind = common.product_kind(dtype)
    side = _tile_side(b, d, n)
    # float32 needs twice the shared memory
    depth = 32 if side == 128 and (x.element_size() == 4 or kind != "bf16") else 64
    added = z if more is None else more
    launch(
        block_kernels.bread_kernel, (b * cdiv(d, side) * cdiv(width, side),),
        x, weight, weight if bias is None else bias, added, z, c, d, n, width,
        *x.stride(), *weight.stride(), *added.stride(), *z.stride(),
        BIAS=bias is not None, MORE=more is not None, RECTIFY=rectify, KIND=kind, M=side, N=side, K=depth,
        num_warps=8 if side == 128 else 4, num_stages=3,
    )  # fmt: skip


def weight_backward(dz: Tensor, x: Tensor, out: torch.dtype, kind: str) -> Tensor:
    """The sum of dZ x^T over samples, by products of that kind.   dz: b d n   x: b c n   ->   d c, of dtype `out`"""
    (b, d, n), c = dz.shape, x.shape[1]
    side, depth = 64 if kind != "bf16" or min(c, d) <= 64 else 128, 64 if x.element_size() == 2 else 32
    tiles = cdiv(d, side), cdiv(c, side)
    length, parts = split_positions(n, 2 * b * tiles[0] * tiles[1], depth)
    sums = dz.new_empty(1, b * parts, d, c, dtype=torch.float32)
    launch(
        block_kernels.weight_gradient_kernel, (b * parts, *tiles),
        dz, x, sums, d, c, n, length, *dz.stride(), *x.stride(),
        KIND=kind, M=side, N=side, K=depth, num_warps=8 if side == 128 else 4,
    )  # fmt: skip
    return common.add_partial_sums(sums, out)[0]


def _cublas_bread(x: Tensor, weight: Tensor, bias: Tensor | None, out: torch.dtype, rectify: bool) -> Tensor:
    """W x in exact float32: tensor cores do not help, and cuBLAS is faster."""
    weight, bias = weight.float(), None if bias is None else bias.float()
    with full_precision(x.device.type):
        if x.stride(1) == 1:
            z = torch.nn.functional.linear(x.float().mT, weight, bias).mT
        else:
            weight = weight.expand(x.shape[0], -1, -1)
            wide = x.float()
            z = torch.bmm(weight, wide) if bias is None else torch.baddbmm(bias[:, None], weight, wide)
        return (z.relu_() if rectify else z).to(out)


def _tile_side(b: int, rows: int, n: int) -> int:
    """Of a square tile: large ones read less, small ones keep a GPU busy with a small problem."""
    return next((side for side in (128, 64) if b * cdiv(rows, side) * cdiv(n, side) >= TARGET_PROGRAMS // 4), 32)


def finish_block(
    fold: Tensor, codes: Tensor, y: Tensor, dtype: torch.dtype,
    *, skip: Tensor | None = None, norm: NormParameters | None = None, rectify: bool = False,
) -> Tensor:  # fmt: skip
    """Write E C to y, after the norm, the skip and the ReLU that are given.

    fold (E = W_u D): b c r   codes: b n r   skip, y: b c n
    """
    (b, c, r), n = fold.shape, codes.shape[1]
    kind = common.product_kind(dtype)
    added = y if skip is None else skip
    mean, var, weight, bias, eps = (fold, fold, None, None, 0.0) if norm is None else norm
    launch(
        block_kernels.finish_kernel, (b * cdiv(c, ROWS) * cdiv(n, COLUMNS),),
        fold, codes, added, mean, var, mean if weight is None else weight, mean if bias is None else bias, y,
        c, n, r, eps, *added.stride(), *y.stride(),
        NORM=norm is not None, AFFINE=weight is not None, SKIP=skip is not None, RECTIFY=rectify,
        LARGEST=HALF_MAX if y.dtype == torch.float16 and skip is not None else None,
        KIND=kind, M=ROWS, N=COLUMNS, K={"bf16": 64, "ieee": 16}.get(kind, 32), num_warps=4, num_stages=2,
    )  # fmt: skip
    return y


class NormCorrection(NamedTuple):
    """What a batch norm in training subtracts from a cotangent of codes: see `norm_backward_kernel`."""

    codes: Tensor  # b n r
    mix: Tensor  # b (r + 1) r: E^T diag(h) E', and E'^T (g - h mean) in the row after it


def codes_cotangent(du: Tensor, fold: Tensor, correction: NormCorrection | None, dtype: torch.dtype) -> Tensor:
    """The cotangent of the codes, in float32.   du: b c n   fold: b c r   ->   b n r   (correction: see `pull_back`)"""
    (b, c, n), r = du.shape, fold.shape[2]
    t = tile_sizes(c, n, r, du.dtype)
    dc = du.new_empty(b, n, r, dtype=torch.float32)
    codes, mix = (fold, fold) if correction is None else correction
    launch(
        block_kernels.codes_gradient_kernel, (b * cdiv(n, t.BN),),
        du, fold, codes, mix, dc, c, n, r, *du.stride(),
        NORM=correction is not None, **_product_kinds(dtype, norm=correction is not None), **_column_tiles(t),
    )  # fmt: skip
    return dc


def cotangent_sums(x: Tensor, r: int) -> Tensor:
    """Memory for the `sums` of an `input_cotangent`.   x: b d n   ->   b * parts d"""
    b, d, n = x.shape
    return x.new_empty(b * cdiv(n, tile_sizes(d, n, r, x.dtype).BN), d, dtype=torch.float32)


def pull_back(
    du: Tensor, fold: Tensor, bases: Tensor, ratio: Tensor | None, z: Tensor | None, dz: Tensor, dtype: torch.dtype,
    correction: NormCorrection | None = None,
) -> Tensor:  # fmt: skip
    """Write dZ = D (E^T dU * Q), zero where z is, to dz (b d n, strides of z).   ->   partial sums of dZ: parts d

    du: b c n   fold: b c r   bases: b d r   ratio (Q): b n r   z: b d n   With `correction`, du is the cotangent of the
    output of a batch norm in training, and fold is E'.
    """
    (b, c, n), d, r = du.shape, bases.shape[1], bases.shape[2]
    t = tile_sizes(max(c, d), n, r, du.dtype)
    sums = du.new_empty(b * cdiv(n, t.BN), d, dtype=torch.float32)
    codes, mix = (fold, fold) if correction is None else correction
    launch(
        block_kernels.pull_back_kernel, (len(sums),),
        du, fold, codes, mix, fold if ratio is None else ratio, bases, dz if z is None else z, dz, sums,
        c, d, n, r, *du.stride(), *dz.stride(),
        NORM=correction is not None, RATIO=ratio is not None, MASK=z is not None, KIND=common.product_kind(dtype),
        **_product_kinds(dtype, norm=correction is not None), **_column_tiles(t),
    )  # fmt: skip
    return sums


def _product_kinds(dtype: torch.dtype, *, norm: bool) -> dict[str, str]:
    """Kinds of E^T dS and of what a norm subtracts from it: the two almost cancel, so TF32 is too coarse for them.

    bfloat16 factors are exact.
    """
    kind = common.product_kind(dtype)
    project = "tf32x3" if norm and kind == "tf32" and dtype != torch.bfloat16 else kind
    return {"PROJECT": project, "FINE": "bf16x2" if kind == "bf16" else project}


def _column_tiles(t: TileSizes) -> dict[str, int]:
    return {"R": t.R, "BN": t.BN, "BD": t.BD, "BK": t.BK, "num_warps": t.warps}
