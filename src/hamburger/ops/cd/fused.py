"""Soft CD by kernels: the values of reference.py, in one launch where it fits the card, else in a few per sweep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamburger.linalg import normalize_columns, ridge_projector
from hamburger.ops import cosine_fused, cosine_stream, launch
from hamburger.ops.cd import ridge, wave
from hamburger.ops.cd.kernels import readout_kernel
from hamburger.ops.start import device_of, start
from hamburger.ops.stream import stream_of
from hamburger.ops.tape import Outputs, taped
from hamburger.ops.tiles import blocks, cdiv
from hamburger.ops.wave import in_one_launch, wave_of
from hamburger.precision import full_precision


def decompose(
    x: Tensor, bases: Tensor, *, steps: int, temperature: float = 0.01, beta: float = 0.1
) -> tuple[Tensor, Tensor, Tensor]:
    """K sweeps, the ridge read-out, and D C.

    x: b d n (float32, bfloat16 or float16)    bases: b d r    ->    bases: b d r, codes: b r n, D C: b d n

    The gradient is that of the read-out (one-step).
    """
    keep = torch.is_grad_enabled() and x.requires_grad
    bases = bases.detach().float().contiguous()
    if keep or torch.compiler.is_compiling():
        found, codes, y, _ = solve(x, bases, steps, temperature, beta, keep)
    else:  # an operator of torch.library would cost the host more than all its launches

        def bare(x: Tensor, bases: Tensor) -> Outputs:
            found, codes, y, _ = factors(x, bases, steps, temperature, beta, keep=False, product=True)
            assert y is not None
            return found, codes, y

        with device_of(x):
            found, codes, y = taped(bare, (x, bases), "cd", steps, temperature, beta, launch.tf32())
    return found, codes.mT, y


def factors(
    x: Tensor,
    bases: Tensor,
    steps: int,
    temperature: float,
    beta: float,
    *,
    keep: bool,
    product: bool,
    codes: torch.dtype = torch.float32,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n   bases: b d r, float32, contiguous   (counts: see `cosine_wave.memory`)

    ->   bases: b d r, of unit length where they have moved,  codes: b n r of that dtype,  D C: b d n where `product`,
    and where `keep` all that the gradient needs beside D: the projector, transposed, b d r
    """
    with device_of(x):
        whole = wave_of(x, bases.shape[2], wave.shared_bytes) if wave.fits(steps, beta) else None
        if whole is not None:
            found = in_one_launch(
                lambda: wave.solve(
                    x, bases, whole, steps, temperature, beta, keep=keep, product=product, dtype=codes, counts=counts
                ),
                x,
            )  # fmt: skip
            if found is not None:
                return found
        return _sweeps(x, bases, steps, temperature, beta, keep, product, codes, counts)


def _sweeps(
    x: Tensor,
    bases: Tensor,
    steps: int,
    temperature: float,
    beta: float,
    keep: bool,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    (b, d, n), r = x.shape, bases.shape[2]
    streamed, swept = stream_of(x, r, cosine_stream.shared_bytes), None
    if streamed is not None:
        swept = in_one_launch(
            lambda: cosine_stream.sweeps(x, bases, streamed, steps, temperature, unit=True, counts=counts), x
        )
    if swept is not None:
        moved, _ = swept
    else:
        moved, *_ = cosine_fused.sweeps(x, bases, steps, temperature, blocks(d, n, r, x.dtype), unit=True)
    if streamed is not None and wave.fits(steps, beta):
        found, projector = ridge.projector(moved, beta, streamed)
    else:
        found = normalize_columns(moved) if steps else bases.clone()
        with full_precision(x.device.type):
            # r x d does not grow with n: torch's solve will do
            projector = ridge_projector(found, beta).mT.contiguous()
    codes = x.new_empty(b, n, r, dtype=dtype)
    y = torch.empty_like(x) if product else None
    _launch(x, projector, found, None, codes, y)
    return found, codes, y, projector if keep else None


@torch.library.custom_op("hamburger::cd_fused", mutates_args=())
def solve(
    x: Tensor, bases: Tensor, steps: int, temperature: float, beta: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """->   bases: b d r,  codes: b n r,  D C: b d n,  the projector: b d r where `keep`, else empty"""
    found, codes, y, projector = factors(x, bases, steps, temperature, beta, keep=keep, product=True)
    assert y is not None
    return found, codes, y, found.new_empty(0) if projector is None else projector


@solve.register_fake
def _(
    x: Tensor, bases: Tensor, steps: int, temperature: float, beta: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    codes = x.new_empty(x.shape[0], x.shape[2], bases.shape[2], dtype=torch.float32)
    projector = torch.empty_like(bases) if keep else bases.new_empty(0)
    return torch.empty_like(bases), codes, torch.empty_like(x), projector


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
    bases, _, _, projector = output
    ctx.like = inputs[0].dtype, inputs[0].shape
    ctx.save_for_backward(bases, projector)
    ctx.mark_non_differentiable(bases, projector)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _: None, dc: Tensor | None, dy: Tensor | None, __: None) -> tuple[Tensor | None, ...]:
    bases, projector = ctx.saved_tensors
    assert projector.numel(), "solved with keep=False"
    if dy is None and dc is None:
        return (None,) * 6
    if dy is None:
        dtype, shape = ctx.like
        dy = bases.new_zeros(shape, dtype=dtype)
    return pull_back(dy, dc, bases, projector), *(None,) * 5


solve.register_autograd(_backward, setup_context=_save)


def _launch(x: Tensor, into: Tensor, out: Tensor, more: Tensor | None, codes: Tensor | None, y: Tensor | None) -> None:
    (b, d, n), r = x.shape, into.shape[2]
    t = blocks(d, n, r, x.dtype)
    product = x if y is None else y
    with device_of(x):
        start(
            readout_kernel, (b * cdiv(n, t.BN),),
            x, into, out, into if more is None else more, into if codes is None else codes, product,
            d, n, r, *x.stride(), *product.stride(),
            MORE=more is not None, STORE=codes is not None, EXPAND=y is not None,
            KIND=launch.kind(x.dtype, fine=True), COARSE=launch.kind(x.dtype),
            R=t.R, BN=t.BN, BD=t.BD, num_warps=t.warps,
        )  # fmt: skip
