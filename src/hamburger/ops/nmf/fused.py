"""NMF in a few launches per sweep: the same values as reference.py, by the kernels beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.nmf import kernels
from hamburger.ops.tiles import Blocks, blocks, cdiv


def decompose(x: Tensor, bases: Tensor, *, steps: int, eps: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """K sweeps from softmax codes, the read-out, and D C.

    x: b d n (float32, bfloat16 or float16)    bases: b d r    ->    bases: b d r, codes: b r n, D C: b d n

    The gradient is that of the read-out (one-step).
    """
    keep = torch.is_grad_enabled() and x.requires_grad
    found, codes, y, _ = solve(x, bases.detach().float().contiguous(), steps, eps, keep)
    return found, codes.mT, y


@torch.library.custom_op("hamburger::nmf_fused", mutates_args=())
def solve(x: Tensor, bases: Tensor, steps: int, eps: float, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """->   bases: b d r,  codes: b n r,  D C: b d n,  the codes before the read-out: b n r where `keep`, else empty"""
    (b, d, n), r = x.shape, bases.shape[2]
    t = blocks(d, n, r, x.dtype)
    with torch.cuda.device_of(x):
        codes = x.new_empty(b, n, r, dtype=torch.float32)
        gram = launch.gram(bases, x.dtype, t)
        for step in range(steps):
            kernels.sweep_kernel[(b * cdiv(n, t.BN),)](
                x, bases, gram, codes, d, n, r, *x.stride(), eps,
                FIRST=step == 0, KIND=launch.kind(x.dtype), **_columns(t),
            )  # fmt: skip
            bases = _update(bases, launch.sums(x, codes, t, launch.kind(x.dtype), gram=True), x.dtype, t, eps)
            gram = launch.gram(bases, x.dtype, t)
        last = torch.empty_like(codes) if keep else codes
        y = torch.empty_like(x)
        _readout(x, bases, gram, codes, None, last, y, t, eps, first=steps == 0)
    return bases if steps else bases.clone(), last, y, codes if keep else x.new_empty(0, dtype=torch.float32)


@solve.register_fake
def _(x: Tensor, bases: Tensor, steps: int, eps: float, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    b, _, n = x.shape
    codes = x.new_empty(b, n, bases.shape[2], dtype=torch.float32)
    before = torch.empty_like(codes) if keep else x.new_empty(0, dtype=torch.float32)
    return torch.empty_like(bases), codes, torch.empty_like(x), before


@torch.library.custom_op("hamburger::nmf_fused_backward", mutates_args=())
def pull_back(dy: Tensor, dc: Tensor | None, bases: Tensor, before: Tensor, eps: float) -> Tensor:
    """The cotangent of x from those of D C and of the codes.   dy: b d n   dc: b n r   ->   b d n"""
    (_, d, n), r = dy.shape, bases.shape[2]
    t = blocks(d, n, r, dy.dtype)
    with torch.cuda.device_of(dy):
        gram = launch.gram(bases, dy.dtype, t)
        dx = torch.empty_like(dy)
        _readout(dy, bases, gram, before, None if dc is None else dc.contiguous(), None, dx, t, eps, first=False)
    return dx


@pull_back.register_fake
def _(dy: Tensor, dc: Tensor | None, bases: Tensor, before: Tensor, eps: float) -> Tensor:
    return torch.empty_like(dy)


pull_back.register_autograd(launch.no_second_derivative)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, _, ctx.eps, _ = inputs
    bases, _, _, before = output
    ctx.like = x.dtype, x.shape
    ctx.save_for_backward(bases, before)
    ctx.mark_non_differentiable(bases, before)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _: None, dc: Tensor | None, dy: Tensor | None, __: None) -> tuple[Tensor | None, ...]:
    bases, before = ctx.saved_tensors
    assert before.numel(), "solved with keep=False"
    if dy is None and dc is None:
        return (None,) * 5
    if dy is None:
        dtype, shape = ctx.like
        dy = bases.new_zeros(shape, dtype=dtype)
    return pull_back(dy, dc, bases, before, ctx.eps), None, None, None, None


solve.register_autograd(_backward, setup_context=_save)


def _columns(t: Blocks) -> dict[str, int]:
    return {"R": t.R, "BN": t.BN, "BD": t.BD, "BK": t.BK, "num_warps": t.warps}


def _update(bases: Tensor, sums: Tensor, dtype: torch.dtype, t: Blocks, eps: float) -> Tensor:
    b, d, r = bases.shape
    new = torch.empty_like(bases)  # not in place: other programs still read the old rows
    kernels.bases_kernel[(b, cdiv(d, t.FD), cdiv(r, t.FR))](
        bases, sums, new, d, r, sums.shape[1], eps,
        KIND=launch.kind_of_factors(dtype), FD=t.FD, FR=t.FR, num_warps=4,
    )  # fmt: skip
    return new


def _readout(
    x: Tensor,
    bases: Tensor,
    gram: Tensor,
    before: Tensor,
    more: Tensor | None,
    codes: Tensor | None,
    y: Tensor,
    t: Blocks,
    eps: float,
    *,
    first: bool,
) -> None:
    (b, d, n), r = x.shape, bases.shape[2]
    kernels.readout_kernel[(b * cdiv(n, t.BN),)](
        x, bases, gram, before, before if more is None else more, before if codes is None else codes, y,
        d, n, r, *x.stride(), *y.stride(), eps,
        FIRST=first, MORE=more is not None, STORE=codes is not None, KIND=launch.kind(x.dtype), **_columns(t),
    )  # fmt: skip
