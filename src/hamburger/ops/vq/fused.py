"""Soft VQ by kernels: the values of reference.py, in one launch where it fits the card, else in a few per sweep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamburger.linalg import EPS
from hamburger.ops import cosine_fused, cosine_stream, cosine_wave, launch
from hamburger.ops.start import device_of, start
from hamburger.ops.stream import Stream, stream_of
from hamburger.ops.tape import Outputs, taped
from hamburger.ops.tiles import blocks, cdiv
from hamburger.ops.vq import wave
from hamburger.ops.vq.kernels import pull_back_kernel
from hamburger.ops.wave import in_one_launch, wave_of


def decompose(
    x: Tensor, bases: Tensor, *, steps: int, temperature: float = 0.01, constant_norms: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """K sweeps, the read-out, and D C.

    x: b d n (float32, bfloat16 or float16)    bases: b d r    ->    bases: b d r, codes: b r n, D C: b d n

    The gradient is that of the read-out (one-step); `constant_norms` leaves |x| out of it.
    """
    bases = bases.detach().float().contiguous()
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and x.requires_grad):
        found, codes, y = solve(x, bases, steps, temperature, constant_norms)
    else:  # an operator of torch.library would cost the host more than all its launches

        def bare(x: Tensor, bases: Tensor) -> Outputs:
            found, codes, y = factors(x, bases, steps, temperature, product=True)
            assert y is not None
            return found, codes, y

        with device_of(x):
            found, codes, y = taped(bare, (x, bases), "vq", steps, temperature, launch.tf32())
    return found, codes.mT, y


def factors(
    x: Tensor,
    bases: Tensor,
    steps: int,
    temperature: float,
    *,
    product: bool,
    codes: torch.dtype = torch.float32,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x: b d n   bases: b d r, float32, contiguous   (counts: see `cosine_wave.memory`)

    ->   bases: b d r,  codes: b n r of that dtype,  D C: b d n where `product`
    """
    with device_of(x):
        whole = wave_of(x, bases.shape[2], cosine_wave.shared_bytes)
        if whole is not None:
            found = in_one_launch(
                lambda: wave.solve(x, bases, whole, steps, temperature, product=product, dtype=codes, counts=counts), x
            )
            if found is not None:
                return found
        streamed = stream_of(x, bases.shape[2], cosine_stream.shared_bytes)
        if streamed is not None:
            found = in_one_launch(lambda: _stream(x, bases, streamed, steps, temperature, product, codes, counts), x)
            if found is not None:
                return found
        return _sweeps(x, bases, steps, temperature, product, codes)


def _stream(
    x: Tensor,
    bases: Tensor,
    cut: Stream,
    steps: int,
    temperature: float,
    product: bool,
    dtype: torch.dtype,
    counts: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    found, scale = cosine_stream.sweeps(x, bases, cut, steps, temperature, unit=False, counts=counts)
    codes = x.new_empty(*scale.shape, bases.shape[2], dtype=dtype)
    y = torch.empty_like(x) if product else None
    cosine_stream.read_out(x, found, scale, codes, y, cut, temperature, first=steps == 0)
    return found, codes, y


def _sweeps(
    x: Tensor, bases: Tensor, steps: int, temperature: float, product: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    _, d, n = x.shape
    t = blocks(d, n, bases.shape[2], x.dtype)
    found, codes, scale = cosine_fused.sweeps(x, bases, steps, temperature, t, unit=False)
    y = torch.empty_like(x) if product else None
    last = codes if dtype == codes.dtype else torch.empty_like(codes, dtype=dtype)
    cosine_fused.assign(x, found, scale, last, y, temperature, t, first=steps == 0)
    return found if steps else bases.clone(), last, y


@torch.library.custom_op("hamburger::vq_fused", mutates_args=())
def solve(
    x: Tensor, bases: Tensor, steps: int, temperature: float, constant_norms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """->   bases: b d r,  codes: b n r,  D C: b d n"""
    found, codes, y = factors(x, bases, steps, temperature, product=True)
    assert y is not None
    return found, codes, y


@solve.register_fake
def _(x: Tensor, bases: Tensor, steps: int, temperature: float, constant_norms: bool) -> tuple[Tensor, Tensor, Tensor]:
    codes = x.new_empty(x.shape[0], x.shape[2], bases.shape[2], dtype=torch.float32)
    return torch.empty_like(bases), codes, torch.empty_like(x)


def input_cotangent(
    x: Tensor,
    dy: Tensor | None,
    dc: Tensor | None,
    bases: Tensor,
    temperature: float,
    constant_norms: bool,
    sums: Tensor | None = None,
) -> Tensor:
    """The cotangent of x from those of D C and of the codes, or of one of them.   x, dy: b d n   dc: b n r   ->   b d n

    sums: b * parts d, as `sums_of` makes it; gets what it sums to over positions, in parts
    """
    (b, d, n), r = x.shape, bases.shape[2]
    t = blocks(d, n, r, x.dtype)
    dx = torch.empty_like(x)
    of_y, of_c = dx if dy is None else dy, bases if dc is None else dc
    start(
        pull_back_kernel, (b * cdiv(n, t.BN),),
        x, of_y, bases, of_c, dx, bases if sums is None else sums, d, n, r,
        *x.stride(), *of_y.stride(), *dx.stride(), temperature,
        OF_Y=dy is not None, OF_C=dc is not None, SUMS=sums is not None,
        CONSTANT=constant_norms, EPS=EPS, TINY=cosine_fused.TINY,
        KIND=launch.kind(x.dtype, fine=True), COARSE=launch.kind(x.dtype),
        R=t.R, BN=t.BN, BD=t.BD, num_warps=t.warps,
    )  # fmt: skip
    return dx


def sums_of(x: Tensor, r: int) -> Tensor:
    """Memory for `input_cotangent`.   x: b d n   ->   b * parts d"""
    b, d, n = x.shape
    return x.new_empty(b * cdiv(n, blocks(d, n, r, x.dtype).BN), d, dtype=torch.float32)


@torch.library.custom_op("hamburger::vq_fused_backward", mutates_args=())
def pull_back(
    x: Tensor, dy: Tensor, dc: Tensor | None, bases: Tensor, temperature: float, constant_norms: bool
) -> Tensor:
    """`input_cotangent` for torch.compile and for graphs of torch's own."""
    with device_of(x):
        return input_cotangent(x, dy, None if dc is None else dc.contiguous(), bases, temperature, constant_norms)


@pull_back.register_fake
def _(x: Tensor, dy: Tensor, dc: Tensor | None, bases: Tensor, temperature: float, constant_norms: bool) -> Tensor:
    return torch.empty_like(x)


pull_back.register_autograd(launch.no_second_derivative)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, _, ctx.temperature, ctx.constant_norms = inputs
    ctx.save_for_backward(x, output[0])
    ctx.mark_non_differentiable(output[0])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _: None, dc: Tensor | None, dy: Tensor | None) -> tuple[Tensor | None, ...]:
    x, bases = ctx.saved_tensors
    if dy is None and dc is None:
        return (None,) * 5
    dy = torch.zeros_like(x) if dy is None else dy
    return pull_back(x, dy, dc, bases, ctx.temperature, ctx.constant_norms), None, None, None, None


solve.register_autograd(_backward, setup_context=_save)
