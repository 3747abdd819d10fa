"""Soft CD in three launches per sweep: the same values as reference.py, by kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamburger.ops import cosine, cosine_fused, launch
from hamburger.ops.cd import reference
from hamburger.ops.cd.kernels import readout_kernel
from hamburger.ops.start import start
from hamburger.ops.tiles import blocks, cdiv


def decompose(
    x: Tensor, bases: Tensor, *, steps: int, temperature: float = 0.01, beta: float = 0.1
) -> tuple[Tensor, Tensor, Tensor]:
    """K sweeps, the ridge read-out, and D C.

    x: b d n (float32, bfloat16 or float16)    bases: b d r    ->    bases: b d r, codes: b r n, D C: b d n

    The gradient is that of the read-out (one-step).
    """
    found = solve(x.detach(), bases.detach().float().contiguous(), steps, temperature)
    projector = reference.projector(found, beta).mT.contiguous()  # r x d does not grow with n: torch's solve will do
    codes, y = readout(x, found, projector)
    return found, codes.mT, y


@torch.library.custom_op("hamburger::cd_fused", mutates_args=())
def solve(x: Tensor, bases: Tensor, steps: int, temperature: float) -> Tensor:
    """->   bases: b d r, of unit length where they have moved"""
    if steps == 0:
        return bases.clone()
    _, d, n = x.shape
    t = blocks(d, n, bases.shape[2], x.dtype)
    with torch.cuda.device_of(x):
        return cosine.normalize(cosine_fused.sweeps(x, bases, steps, temperature, t, unit=True)[0])


@solve.register_fake
def _(x: Tensor, bases: Tensor, steps: int, temperature: float) -> Tensor:
    return torch.empty_like(bases)


@torch.library.custom_op("hamburger::cd_fused_readout", mutates_args=())
def readout(x: Tensor, bases: Tensor, projector: Tensor) -> tuple[Tensor, Tensor]:
    """x: b d n   bases, projector (transposed): b d r   ->   codes: b n r,  D C: b d n"""
    codes = x.new_empty(x.shape[0], x.shape[2], bases.shape[2], dtype=torch.float32)
    y = torch.empty_like(x)
    _launch(x, projector, bases, None, codes, y)
    return codes, y


@readout.register_fake
def _(x: Tensor, bases: Tensor, projector: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], x.shape[2], bases.shape[2], dtype=torch.float32), torch.empty_like(x)


@torch.library.custom_op("hamburger::cd_fused_backward", mutates_args=())
def pull_back(dy: Tensor, dc: Tensor | None, bases: Tensor, projector: Tensor) -> Tensor:
    """The cotangent of x from those of D C and of the codes.   dy: b d n   dc: b n r   ->   b d n"""
    dx = torch.empty_like(dy)
    _launch(dy, bases, projector, None if dc is None else dc.contiguous(), None, dx)
    return dx


@pull_back.register_fake
def _(dy: Tensor, dc: Tensor | None, bases: Tensor, projector: Tensor) -> Tensor:
    return torch.empty_like(dy)


pull_back.register_autograd(launch.no_second_derivative)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, bases, projector = inputs
    ctx.like = x.dtype, x.shape
    ctx.save_for_backward(bases, projector)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dc: Tensor | None, dy: Tensor | None) -> tuple[Tensor | None, ...]:
    bases, projector = ctx.saved_tensors
    if dy is None and dc is None:
        return None, None, None
    if dy is None:
        dtype, shape = ctx.like
        dy = bases.new_zeros(shape, dtype=dtype)
    return pull_back(dy, dc, bases, projector), None, None


readout.register_autograd(_backward, setup_context=_save)


def _launch(x: Tensor, into: Tensor, out: Tensor, more: Tensor | None, codes: Tensor | None, y: Tensor) -> None:
    (b, d, n), r = x.shape, into.shape[2]
    t = blocks(d, n, r, x.dtype)
    with torch.cuda.device_of(x):
        start(
            readout_kernel, (b * cdiv(n, t.BN),),
            x, into, out, into if more is None else more, into if codes is None else codes, y,
            d, n, r, *x.stride(), *y.stride(),
            MORE=more is not None, STORE=codes is not None,
            KIND=launch.kind(x.dtype, fine=True), COARSE=launch.kind(x.dtype),
            R=t.R, BN=t.BN, BD=t.BD, num_warps=t.warps,
        )  # fmt: skip
