"""`decompose` by fused kernels: one solve, one gradient and one pair of operators for all hams.

`KERNELS` lists the kernels. The gradient is that of the read-out (one-step): D is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hamburger.errors import OptionError
from hamburger.kernels import cd, common, nmf, vq
from hamburger.kernels.dispatch import FusedSpec
from hamburger.kernels.launcher import Outputs, device_of, launch_cached


class Kernel(NamedTuple):
    """The solve of a ham, and the gradient of its read-out; `block.py` fuses a whole Hamburger from the same entries.

    - `solve(x, initial, steps, *options, keep=, product=, dtype=, padded=, counters=)`: see `solve_factors`
    - `slope`: what the gradient needs next to D and how it uses it. "codes": Q (b n r), dX = D (Q * (D^T dY + dC)).
      "bases": P (b d r), dX = P (D^T dY + dC). None: x is saved instead, for `input_cotangent`
    - `input_cotangent(x, dy, dc, bases, *options, sums=None)`: see `vq.input_cotangent`
    - `rectify`: whether the lower bread ends in a ReLU; not with `input_cotangent`
    """

    solve: Callable[..., tuple[Tensor, Tensor, Tensor | None, Tensor | None]]
    slope: Literal["codes", "bases"] | None = None
    input_cotangent: Callable[..., Tensor] | None = None
    rectify: bool = False


KERNELS = {
    "nmf": Kernel(nmf.solve_factors, slope="codes", rectify=True),
    "vq": Kernel(vq.solve_factors, input_cotangent=vq.input_cotangent),
    "cd": Kernel(cd.solve_factors, slope="bases"),
}


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
    *, keep: bool, product: bool, dtype: torch.dtype = torch.float32, padded: bool = False,
    counters: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """K steps from the bases `initial` (b d r, float32, contiguous), and the read-out.   x: b d n

    `padded`: see `tiling.row_width`.   `counters`: `common.zero_counters`, if the caller has them already.
    ->   bases: b d r,  codes: b n r of `dtype`,  D C: b d n if `product`,  and if `keep` what the gradient of the
    read-out needs next to them, the slope: Q = C / (D^T D C + eps) for NMF (b n r), the ridge projector for CD
    (transposed: b d r), nothing for VQ, whose gradient recomputes the codes from x
    """
    if kernel not in KERNELS:
        raise OptionError(f"decompose: no kernel '{kernel}'; expected one of {', '.join(KERNELS)}")
    solve = KERNELS[kernel].solve
    return solve(x, initial, steps, *options, keep=keep, product=product, dtype=dtype, padded=padded, counters=counters)


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
    slope, kind = bases.new_empty(0), KERNELS[kernel].slope
    if keep and kind is not None:
        slope = torch.empty_like(bases)
        if kind == "codes":
            slope = torch.empty_like(codes, dtype=common.saved_dtype(x.dtype))
    return torch.empty_like(bases), codes, torch.empty_like(x), slope


@torch.library.custom_op("hamburger::decompose_fused_backward", mutates_args=())
def solve_backward_op(
    dy: Tensor, dc: Tensor | None, x: Tensor | None, bases: Tensor, slope: Tensor, kernel: str, options: Sequence[float]
) -> Tensor:
    """The cotangent of x from those of D C (b d n) and of the codes (b n r). x: for kernels without a slope"""
    entry = KERNELS[kernel]
    with device_of(dy):
        dc = None if dc is None else dc.contiguous()
        if entry.input_cotangent is not None:
            return entry.input_cotangent(x, dy, dc, bases, *options)
        dx, is_ratio = torch.empty_like(dy), entry.slope == "codes"
        out, ratio = (bases, slope) if is_ratio else (slope, None)
        common.launch_readout(dy, bases, out, dc, None, dx, ratio=ratio, fine=not is_ratio)
        return dx


@solve_backward_op.register_fake
def _(
    dy: Tensor, dc: Tensor | None, x: Tensor | None, bases: Tensor, slope: Tensor, kernel: str, options: Sequence[float]
) -> Tensor:
    return torch.empty_like(dy if x is None else x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, ctx.kernel, ctx.options, _, _ = inputs
    bases, _, _, slope = output
    ctx.like = x.dtype, x.shape
    ctx.save_for_backward(x if KERNELS[ctx.kernel].slope is None else None, bases, slope)
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
