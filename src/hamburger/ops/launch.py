"""The host's side of the shared kernels: precision, grids, partial sums. No value is read, so the host never waits."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import triton
from torch import Tensor

from hamburger.errors import OptionError
from hamburger.ops import kernels
from hamburger.ops.start import start
from hamburger.ops.tiles import Blocks, cdiv, split

COUNTS = 32  # that a solve in one launch may use, for each image
FEW = 4  # parts, that are added up where they are used

# Whether kernels run in Triton's interpreter, on the CPU (TRITON_INTERPRET=1 before triton is imported).
INTERPRETED = not isinstance(kernels.sums_kernel, triton.JITFunction)


def kind(dtype: torch.dtype, *, fine: bool = False) -> str:
    """How products with X are made; they are always added up in float32.

    bfloat16 has the range of the factors, so they can be rounded to it. float16 has not: its products are TF32, which
    holds every float16. float32 is exact unless torch is told to use TF32. `fine` keeps more digits of the factor for
    half inputs: a softmax at a low temperature turns the ninth bit of a cosine into another cluster.
    """
    if dtype == torch.float32:
        return "tf32" if tf32() else "ieee"
    if dtype == torch.bfloat16 and not INTERPRETED:  # the interpreter cannot multiply bfloat16
        return "bf16x2" if fine else "bf16"
    if fine:
        return "tf32x2"
    return "ieee" if INTERPRETED else "tf32"  # the interpreter multiplies in full


def kind_of_factors(dtype: torch.dtype) -> str:
    """How products of factors alone are made."""
    return "ieee" if kind(dtype) == "ieee" else "tf32"


def kept_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of E, of Q, and of codes that wait for the backward pass: bfloat16 has their range, float16 has not."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def tf32() -> bool:
    """Torch's own switch for matrix products of float32."""
    flags = torch.backends.cuda.matmul
    precision = getattr(flags, "fp32_precision", None)  # torch 2.9; the older name then raises where both were set
    return bool(flags.allow_tf32) if precision is None else bool(precision == "tf32")


def no_second_derivative(ctx: Any, *cotangents: Tensor) -> NoReturn:
    raise OptionError(
        "decompose: backend 'fused' can be differentiated once, and a gradient of its gradient was asked for "
        "(create_graph=True); take backend='plain'"
    )


def sums(x: Tensor, codes: Tensor, t: Blocks, kind: str, *, gram: bool) -> Tensor:
    """Sums over positions, in few parts.   x: b d n   codes: b n r   ->   b parts (d + e) r   (see `sums_kernel`)"""
    (b, d, n), r = x.shape, codes.shape[2]
    extra = r if gram else 1
    tiles = (cdiv(d, t.SD) + cdiv(extra, t.SD), cdiv(r, t.SR))
    length, parts = split(n, b * tiles[0] * tiles[1], t.SN)
    out = torch.empty(b, parts, d + extra, r, dtype=torch.float32, device=x.device)
    start(
        kernels.sums_kernel, (b * parts, *tiles),
        x, codes, out, d, n, r, length, *x.stride(),
        GRAM=gram, KIND=kind, SD=t.SD, SR=t.SR, SN=t.SN, num_warps=t.sum_warps,
    )  # fmt: skip
    # what uses them reads them in tiles, several times over: many parts are added up first, by many programs
    return out if parts <= FEW else total(out)[:, None]


def total(sums: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """b parts ... in float32, added up over the parts in order   ->   b ..., of that dtype"""
    out = sums.new_empty(sums.shape[0], *sums.shape[2:], dtype=dtype)
    size = out[0].numel()
    start(
        # all on the first axis: the others end at 65,535, and the gradient of a wide bread has more tiles
        kernels.total_kernel, (len(sums) * cdiv(size, 64),),
        sums, out, sums.shape[1], size, FP=32, BLOCK=64, num_warps=4,
    )  # fmt: skip
    return out


def counters(b: int, device: torch.device) -> Tensor:
    """Zeros for each image, for programs that wait for each other.   ->   b COUNTS"""
    counts = torch.empty(b, COUNTS, dtype=torch.int32, device=device)
    start(kernels.clear_kernel, (1,), counts, counts.numel(), BLOCK=1024, num_warps=4)
    return counts


def gram(bases: Tensor, dtype: torch.dtype, t: Blocks) -> Tensor:
    """D^T D.   bases: b d r   ->   b r r"""
    b, d, r = bases.shape
    out = torch.empty(b, r, r, dtype=torch.float32, device=bases.device)
    tiles = cdiv(r, t.FG)
    start(
        kernels.gram_kernel, (b, tiles, tiles),
        bases, out, d, r, KIND=kind_of_factors(dtype), FD=t.GD, FR=t.FG, num_warps=4,
    )  # fmt: skip
    return out
