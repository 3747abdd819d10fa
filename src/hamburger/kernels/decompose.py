"""`decompose` by fused kernels: one solve, one gradient and one pair of operators for all hams.

The kernels are in `nmf.py`, `vq.py` and `cd.py`. The gradient is that of the read-out (one-step): D is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hamburger.errors import OptionError
from hamburger.kernels import cd, common, nmf, vq
from hamburger.kernels.dispatch import KERNELS, FusedSpec
from hamburger.kernels.launcher import Outputs, device_of, launch_cached


def decompose(spec: FusedSpec, x: Tensor, initial: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """K steps, the read-out, and D C.

    x: b d n (float32, bfloat16 or float16)   initial: b d r   ->   bases: b d r,  codes: b r n,  D C: b d n
    """
    keep = torch.is_grad_enabled() and x.requires_grad
    bases = initial.detach().float().contiguous()
    if keep or torch.compiler.is_compiling():
        new_bases, codes, y, _ = solve_op(x, bases, spec.kernel, spec.options, steps, keep)
        return new_bases, codes.mT, y

    def solve(x: Tensor, bases: Tensor) -> Outputs:
        new_bases, codes, y, _ = solve_factors(spec.kernel, spec.options, x, bases, steps, keep=False, product=True)
        assert y is not None
        return new_bases, codes, y

    # without a graph, by cached launches: an operator of torch.library would take more CPU time than all of them
    with device_of(x):
        new_bases, codes, y = launch_cached(solve, (x, bases), "decompose", spec, steps, common.tf32_enabled())
    return new_bases, codes.mT, y


def solve_factors(
    kernel: str, options: Sequence[float], x: Tensor, initial: Tensor, steps: int,
    *, keep: bool, product: bool, dtype: torch.dtype = torch.float32, counters: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """K steps from the bases `initial` (b d r, float32, contiguous), and the read-out.   x: b d n

    `counters`: `common.zero_counters`, if the caller has them already.
    ->   bases: b d r,  codes: b n r of `dtype`,  D C: b d n if `product`,  and if `keep` what the gradient of the
    read-out needs next to them, the slope: Q = C / (D^T D C + eps) for NMF (b n r), the ridge projector for CD
    (transposed: b d r), nothing for VQ, whose gradient recomputes the codes from x
    """
    more: dict[str, Any] = {"product": product, "dtype": dtype, "counters": counters}
    if kernel == "nmf":
        return nmf.solve_factors(x, initial, steps, options[0], keep=keep, **more)
    if kernel == "vq":
        return *vq.solve_factors(x, initial, steps, options[0], **more), None
    if kernel == "cd":
        return cd.solve_factors(x, initial, steps, *options, keep=keep, **more)
    raise OptionError(f"decompose: no kernel '{kernel}'; expected one of {', '.join(KERNELS)}")


# -- operators for autograd and torch.compile --------------------------------------------------------------------------


@torch.library.custom_op("hamburger::decompose_fused", mutates_args=())
def solve_op(
    x: Tensor, bases: Tensor, kernel: str, options: Sequence[float], steps: int, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """->   bases: b d r,  codes: b n r,  D C: b d n,  the slope, empty unless `keep`"""
    new_bases, codes, y, slope = solve_factors(kernel, options, x, bases, steps, keep=keep, product=True)
    assert y is not None
    return new_bases, codes, y, bases.new_empty(0) if slope is None else slope


@solve_op.register_fake
def _(
    x: Tensor, bases: Tensor, kernel: str, options: Sequence[float], steps: int, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    codes = x.new_empty(x.shape[0], x.shape[2], bases.shape[2], dtype=torch.float32)
    slope = bases.new_empty(0)
    if keep and kernel != "vq":
        slope = (
            torch.empty_like(codes, dtype=common.saved_dtype(x.dtype)) if kernel == "nmf" else torch.empty_like(bases)
        )
    return torch.empty_like(bases), codes, torch.empty_like(x), slope


@torch.library.custom_op("hamburger::decompose_fused_backward", mutates_args=())
def solve_backward_op(
    dy: Tensor, dc: Tensor | None, x: Tensor | None, bases: Tensor, slope: Tensor, kernel: str, options: Sequence[float]
) -> Tensor:
    """The cotangent of x from those of D C (b d n) and of the codes (b n r). VQ needs x."""
    with device_of(dy):
        dc = None if dc is None else dc.contiguous()
        if x is not None:
            temperature, constant_norms = options
            return vq.input_cotangent(x, dy, dc, bases, temperature, bool(constant_norms))
        return (nmf if kernel == "nmf" else cd).input_cotangent(dy, dc, bases, slope)


@solve_backward_op.register_fake
def _(
    dy: Tensor, dc: Tensor | None, x: Tensor | None, bases: Tensor, slope: Tensor, kernel: str, options: Sequence[float]
) -> Tensor:
    return torch.empty_like(dy if x is None else x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, ctx.kernel, ctx.options, _, _ = inputs
    bases, _, _, slope = output
    ctx.like = x.dtype, x.shape
    ctx.save_for_backward(x if ctx.kernel == "vq" else None, bases, slope)
    ctx.mark_non_differentiable(bases, slope)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _: None, dc: Tensor | None, dy: Tensor | None, __: None) -> tuple[Tensor | None, ...]:
    if dy is None and dc is None:
        return (None,) * 6
    x, bases, slope = ctx.saved_tensors
    assert x is not None or slope.numel(), "solved with keep=False"
    dtype, shape = ctx.like
    dy = bases.new_zeros(shape, dtype=dtype) if dy is None else dy
    return solve_backward_op(dy, dc, x, bases, slope, ctx.kernel, ctx.options), *(None,) * 5


solve_backward_op.register_autograd(common.refuse_second_derivative)
solve_op.register_autograd(_backward, setup_context=_save)
