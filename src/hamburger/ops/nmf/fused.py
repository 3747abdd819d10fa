"""NMF by kernels: the same values as reference.py, in one launch where it fits the card, else in a few per sweep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.nmf import kernels, stream, wave
from hamburger.ops.nmf.bases import update
from hamburger.ops.start import device_of, start
from hamburger.ops.stream import stream_of
from hamburger.ops.tape import Outputs, taped
from hamburger.ops.tiles import Blocks, blocks, cdiv
from hamburger.ops.wave import in_one_launch, wave_of


def decompose(x: Tensor, bases: Tensor, *, steps: int, eps: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """K sweeps from softmax codes, the read-out, and D C.

    x: b d n (float32, bfloat16 or float16)    bases: b d r    ->    bases: b d r, codes: b r n, D C: b d n

    The gradient is that of the read-out (one-step).
    """
    keep = torch.is_grad_enabled() and x.requires_grad
    bases = bases.detach().float().contiguous()
    if keep or torch.compiler.is_compiling():
        found, codes, y, _ = solve(x, bases, steps, eps, keep)
    else:  # an operator of torch.library would cost the host more than all its launches

        def bare(x: Tensor, bases: Tensor) -> Outputs:
            found, codes, y, _ = factors(x, bases, steps, eps, keep=False, product=True)
            assert y is not None
            return found, codes, y

        with device_of(x):
            found, codes, y = taped(bare, (x, bases), "nmf", steps, eps, launch.tf32())
    return found, codes.mT, y


def factors(
    x: Tensor,
    bases: Tensor,
    steps: int,
    eps: float,
    *,
    keep: bool,
    product: bool,
    codes: torch.dtype = torch.float32,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """x: b d n   bases: b d r, float32, contiguous

    ->   bases: b d r,  codes: b n r of that dtype,  D C: b d n where `product`,  and where `keep` all that the gradient
    needs: Q = C / (D^T D C + eps) from before the read-out, b n r   (counts: see `wave.solve`)
    """
    with device_of(x):
        whole = wave_of(x, bases.shape[2], wave.shared_bytes)
        if whole is not None:
            found = in_one_launch(
                lambda: wave.solve(x, bases, whole, steps, eps, keep=keep, product=product, dtype=codes, counts=counts),
                x,
            )
            if found is not None:
                return found
        streamed = stream_of(x, bases.shape[2], stream.shared_bytes)
        if streamed is not None:
            found = in_one_launch(
                lambda: stream.solve(
                    x, bases, streamed, steps, eps, keep=keep, product=product, dtype=codes, counts=counts
                ),
                x,
            )  # fmt: skip
            if found is not None:
                return found
        return _sweeps(x, bases, steps, eps, keep, product, codes)


def _sweeps(
    x: Tensor, bases: Tensor, steps: int, eps: float, keep: bool, product: bool, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    (b, d, n), r = x.shape, bases.shape[2]
    t, kind = blocks(d, n, r, x.dtype), launch.kind(x.dtype)
    codes = x.new_empty(b, n, r, dtype=torch.float32)
    gram = launch.gram(bases, x.dtype, t)
    for step in range(steps):
        start(
            kernels.sweep_kernel, (b * cdiv(n, t.BN),),
            x, bases, gram, codes, d, n, r, *x.stride(), eps, FIRST=step == 0, KIND=kind, BK=t.BK, **_columns(t)
        )  # fmt: skip
        bases = update(bases, launch.sums(x, codes, t, kind, gram=True), x.dtype, t, eps)
        gram = launch.gram(bases, x.dtype, t)
    y = torch.empty_like(x) if product else None
    ratio = torch.empty_like(codes, dtype=launch.kept_dtype(x.dtype)) if keep else None
    last = codes if dtype == codes.dtype else torch.empty_like(codes, dtype=dtype)
    out = x if y is None else y
    start(
        kernels.readout_kernel, (b * cdiv(n, t.BN),),
        x, bases, gram, codes, last, codes if ratio is None else ratio, out, d, n, r, *x.stride(), *out.stride(), eps,
        FIRST=steps == 0, KEEP=keep, EXPAND=product, KIND=kind, BK=t.BK, **_columns(t),
    )  # fmt: skip
    return bases if steps else bases.clone(), last, y, ratio


@torch.library.custom_op("hamburger::nmf_fused", mutates_args=())
def solve(x: Tensor, bases: Tensor, steps: int, eps: float, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """->   bases: b d r,  codes: b n r,  D C: b d n,  Q: b n r where `keep`, else empty"""
    found, codes, y, ratio = factors(x, bases, steps, eps, keep=keep, product=True)
    assert y is not None
    return found, codes, y, x.new_empty(0, dtype=launch.kept_dtype(x.dtype)) if ratio is None else ratio


@solve.register_fake
def _(x: Tensor, bases: Tensor, steps: int, eps: float, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    b, _, n = x.shape
    codes = x.new_empty(b, n, bases.shape[2], dtype=torch.float32)
    dtype = launch.kept_dtype(x.dtype)
    ratio = torch.empty_like(codes, dtype=dtype) if keep else x.new_empty(0, dtype=dtype)
    return torch.empty_like(bases), codes, torch.empty_like(x), ratio


@torch.library.custom_op("hamburger::nmf_fused_backward", mutates_args=())
def pull_back(dy: Tensor, dc: Tensor | None, bases: Tensor, ratio: Tensor) -> Tensor:
    """The cotangent of x from those of D C and of the codes.   dy: b d n   dc, ratio: b n r   ->   b d n"""
    (b, d, n), r = dy.shape, bases.shape[2]
    t = blocks(d, n, r, dy.dtype)
    with device_of(dy):
        dx = torch.empty_like(dy)
        start(
            kernels.pull_back_kernel, (b * cdiv(n, t.BN),),
            dy, bases, ratio, ratio if dc is None else dc.contiguous(), dx, d, n, r, *dy.stride(), *dx.stride(),
            MORE=dc is not None, KIND=launch.kind(dy.dtype), **_columns(t),
        )  # fmt: skip
    return dx


@pull_back.register_fake
def _(dy: Tensor, dc: Tensor | None, bases: Tensor, ratio: Tensor) -> Tensor:
    return torch.empty_like(dy)


pull_back.register_autograd(launch.no_second_derivative)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    bases, _, _, ratio = output
    ctx.like = inputs[0].dtype, inputs[0].shape
    ctx.save_for_backward(bases, ratio)
    ctx.mark_non_differentiable(bases, ratio)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _: None, dc: Tensor | None, dy: Tensor | None, __: None) -> tuple[Tensor | None, ...]:
    bases, ratio = ctx.saved_tensors
    assert ratio.numel(), "solved with keep=False"
    if dy is None and dc is None:
        return (None,) * 5
    if dy is None:
        dtype, shape = ctx.like
        dy = bases.new_zeros(shape, dtype=dtype)
    return pull_back(dy, dc, bases, ratio), None, None, None, None


solve.register_autograd(_backward, setup_context=_save)


def _columns(t: Blocks) -> dict[str, int]:
    return {"R": t.R, "BN": t.BN, "BD": t.BD, "num_warps": t.warps}
