"""From x to u = W_u M(W_l x) in a few launches, and back: the upper bread is folded into the dictionary.

W_u (D C) = (W_u D) C = E C, so neither D C nor its product with W_u is made. The gradient is that of the read-out
(one-step): D, and with it E's second factor, is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.block import Norm, Plan, Weights, hams, launches
from hamburger.ops.block.hams import Factors
from hamburger.ops.start import device_of
from hamburger.ops.tape import Outputs, taped
from hamburger.precision import full_precision


def context(x: Tensor, weights: Weights, initial: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """x: b c n   initial: (b or 1) d r (float32)   ->   u: b c n in plan.dtype,  the bases found: b d r"""
    differentiated = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *weights))
    if torch.compiler.is_compiling():
        u, bases, *_ = solve(x, *weights, initial, *plan, differentiated)
        return u, bases
    if differentiated:
        u, bases = _Context.apply(x, *weights, initial, plan)
        return u, bases
    u, found, *_ = _forward(x, weights, initial, plan, keep=False)
    return u, found.bases


def finished(
    x: Tensor, weights: Weights, initial: Tensor, plan: Plan, norm: Norm | None, *, rectify: bool
) -> tuple[Tensor, Tensor]:
    """The whole block in evaluation, u never written: the norm of u, + x, then a ReLU. Not differentiated.

    x: b c n   initial: (b or 1) d r (float32)   ->   y: b c n, as x,  the bases found: b d r
    """

    def solve(x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, initial: Tensor, *of_norm: Any) -> Outputs:
        found = factors(x, Weights(lower, bias, upper), initial, plan, keep=False)
        y = torch.empty_like(x)
        folded = None if norm is None else Norm._make((*of_norm, norm.eps))
        launches.finish(found.fold, found.codes, y, plan.dtype, skip=x, norm=folded, rectify=rectify)
        return y, found.bases

    given = (x, *weights, initial, *(() if norm is None else norm[:4]))
    with device_of(x):
        y, bases = taped(solve, given, "finished", plan, norm and norm.eps, rectify, launch.tf32())
    return y, bases


class Found(NamedTuple):
    """All that leads to u = E C, and W_l as it was multiplied with."""

    bases: Tensor  # b d r
    codes: Tensor  # b n r
    slope: Tensor  # see `hams.Factors`
    fold: Tensor  # E = W_u D: b c r
    z: Tensor  # W_l x: b d n
    lower: Tensor  # d c


def factors(x: Tensor, weights: Weights, initial: Tensor, plan: Plan, *, keep: bool, unit: bool = False) -> Found:
    """x: b c n   initial: (b or 1) d r, its columns still to be normalised where `unit`"""
    dtype = plan.dtype
    ready = launches.prepare(weights.lower, initial, x.shape[0], dtype, unit=unit)
    z = launches.bread(x, ready.lower, weights.bias, dtype, out=dtype, rectify=hams.rectifies(plan.ham))
    found = hams.factors(z, plan.ham, plan.options, ready.initial, plan.steps, keep=keep, counts=ready.counts)
    # E = W_u D is a bread as well, of r columns
    fold = launches.bread(found.bases, weights.upper, None, dtype, out=launch.kept_dtype(dtype), rectify=False)
    return Found(*found, fold, z, ready.lower)


def _forward(
    x: Tensor, weights: Weights, initial: Tensor, plan: Plan, *, keep: bool
) -> tuple[Tensor, Factors, Tensor, Tensor]:
    """->   u: b c n,  the factors,  E: b c r,  z: b d n, empty where a gradient has no use for it"""

    def solve(x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, initial: Tensor) -> Outputs:
        bases, codes, slope, fold, z, _ = factors(x, Weights(lower, bias, upper), initial, plan, keep=keep)
        u = x.new_empty(x.shape[0], fold.shape[1], x.shape[2], dtype=plan.dtype)  # as norms like it best
        launches.finish(fold, codes, u, plan.dtype)
        if keep and not hams.keeps_input(plan.ham):
            z = z.new_empty(0)
        return u, bases, codes, slope, fold, z

    with device_of(x):
        outputs = taped(solve, (x, *weights, initial), "context", plan, keep, launch.tf32())
    u, bases, codes, slope, fold, z = outputs
    return u, Factors(bases, codes, slope), fold, z


class KeptContext(NamedTuple):
    """What the backward pass needs of the forward pass."""

    x: Tensor
    lower: Tensor
    upper: Tensor
    z: Tensor
    bases: Tensor
    codes: Tensor
    slope: Tensor
    fold: Tensor


def gradients(du: Tensor, kept: KeptContext, plan: Plan, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """The cotangents of x, lower, bias and upper, those that are needed.   du: b c n"""
    x, lower, upper, z, bases, codes, slope, fold = kept
    dx = dlower = dbias = dupper = None
    with torch.no_grad(), device_of(du), full_precision(du.device.type):
        if any(needs[:3]):
            dz, total = hams.pull_back(du, fold, x, z, Factors(bases, codes, slope), plan)
            if needs[0]:
                dx = like(x, lower.to(dz.dtype), dz)
            if needs[1]:
                dlower = over_samples(torch.bmm(dz, x.to(dz.dtype).mT), lower.dtype)
            if needs[2]:
                dbias = total.to(lower.dtype)
        if needs[3]:
            dfold = torch.bmm(du.to(codes.dtype), codes)  # b c r
            dupper = over_samples(torch.bmm(dfold, bases.to(codes.dtype).mT), upper.dtype)
    return dx, dlower, dbias, dupper


def over_samples(found: Tensor, dtype: torch.dtype) -> Tensor:
    """Their sum.   b d c   ->   d c"""
    return found[0].to(dtype) if found.shape[0] == 1 else found.sum(0, dtype=dtype)


def like(x: Tensor, lower: Tensor, dz: Tensor) -> Tensor:
    """W_l^T dZ, laid out as x, to which the gradient of the skip is added.   lower: d c   dz: b d n   ->   b c n"""
    weight = lower.expand(dz.shape[0], -1, -1)
    dx = torch.bmm(dz.mT, weight).mT if x.stride(1) == 1 else torch.bmm(weight.mT, dz)
    return dx.to(x.dtype)


class _Context(torch.autograd.Function):
    """`context` for eager calls: an operator of torch.library would cost the host more than all its launches."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, initial: Tensor, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        keep = any(ctx.needs_input_grad[:4])
        u, found, fold, z = _forward(x, Weights(lower, bias, upper), initial, plan, keep=keep)
        ctx.plan = plan
        ctx.save_for_backward(*KeptContext(x, lower, upper, z, *found, fold))
        ctx.mark_non_differentiable(found.bases)
        ctx.set_materialize_grads(False)
        return u, found.bases

    @staticmethod
    def backward(ctx: Any, du: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if du is None:
            return (None,) * 6
        kept, needs = KeptContext(*ctx.saved_tensors), ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():  # create_graph=True
            return *_Once.apply(ctx.plan, needs, du, *kept), None, None
        return *gradients(du, kept, ctx.plan, needs), None, None


class _Once(torch.autograd.Function):
    """`gradients` with a graph that says why there is none."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, needs: Sequence[bool], du: Tensor, *kept: Tensor) -> tuple[Tensor | None, ...]:
        return gradients(du, KeptContext(*kept), plan, needs)

    backward = staticmethod(launch.no_second_derivative)


@torch.library.custom_op("hamburger::block_fused", mutates_args=())
def solve(
    x: Tensor,
    lower: Tensor,
    bias: Tensor | None,
    upper: Tensor,
    initial: Tensor,
    ham: str,
    options: Sequence[float],
    steps: int,
    dtype: torch.dtype,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`context` for torch.compile.   ->   u,  bases,  and where `keep` what is kept: z,  codes,  slope,  E"""
    plan = Plan(ham, tuple(options), steps, dtype)
    u, found, fold, z = _forward(x, Weights(lower, bias, upper), initial, plan, keep=keep)
    if keep:
        return u, found.bases, z, found.codes, found.slope, fold
    none = [x.new_empty(0) for _ in range(4)]
    return u, found.bases, none[0], none[1], none[2], none[3]


@solve.register_fake
def _(
    x: Tensor,
    lower: Tensor,
    bias: Tensor | None,
    upper: Tensor,
    initial: Tensor,
    ham: str,
    options: Sequence[float],
    steps: int,
    dtype: torch.dtype,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    (b, _, n), c, r = x.shape, upper.shape[0], initial.shape[2]
    u, bases = x.new_empty(b, c, n, dtype=dtype), initial.new_empty(b, *initial.shape[1:])
    if not keep:
        none = [x.new_empty(0) for _ in range(4)]
        return u, bases, none[0], none[1], none[2], none[3]
    kept = launch.kept_dtype(dtype)
    slope = {"nmf": x.new_empty(b, n, r, dtype=kept), "cd": torch.empty_like(bases)}.get(ham)
    return (
        u,
        bases,
        launches.empty_like(x, lower.shape[0], dtype) if hams.keeps_input(ham) else x.new_empty(0, dtype=dtype),
        x.new_empty(b, n, r, dtype=kept),
        x.new_empty(0, dtype=torch.float32) if slope is None else slope,
        x.new_empty(b, c, r, dtype=kept),
    )


@torch.library.custom_op("hamburger::block_fused_backward", mutates_args=())
def pull_back(
    du: Tensor,
    x: Tensor,
    lower: Tensor,
    upper: Tensor,
    z: Tensor,
    bases: Tensor,
    codes: Tensor,
    slope: Tensor,
    fold: Tensor,
    ham: str,
    options: Sequence[float],
    dtype: torch.dtype,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The cotangents of x, lower, bias and upper; empty where they are not needed."""
    kept = KeptContext(x, lower, upper, z, bases, codes, slope, fold)
    found = gradients(du, kept, Plan(ham, tuple(options), 0, dtype), needs)
    dx, dlower, dbias, dupper = (x.new_empty(0) if g is None else g for g in found)
    return dx, dlower, dbias, dupper


@pull_back.register_fake
def _(
    du: Tensor,
    x: Tensor,
    lower: Tensor,
    upper: Tensor,
    z: Tensor,
    bases: Tensor,
    codes: Tensor,
    slope: Tensor,
    fold: Tensor,
    ham: str,
    options: Sequence[float],
    dtype: torch.dtype,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = (
        launches.empty_like(x, x.shape[1], x.dtype),
        torch.empty_like(lower),
        lower.new_empty(lower.shape[0]),
        torch.empty_like(upper),
    )
    dx, dlower, dbias, dupper = (g if need else x.new_empty(0) for g, need in zip(found, needs, strict=True))
    return dx, dlower, dbias, dupper


pull_back.register_autograd(launch.no_second_derivative)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, lower, _, upper, _, ctx.ham, ctx.options, _, ctx.dtype, _ = inputs
    _, bases, z, codes, slope, fold = output
    ctx.save_for_backward(*KeptContext(x, lower, upper, z, bases, codes, slope, fold))
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, du: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if du is None:
        return (None,) * 10
    needs = list(ctx.needs_input_grad[:4])
    found = pull_back(du, *ctx.saved_tensors, ctx.ham, ctx.options, ctx.dtype, needs)
    return *(g if need else None for g, need in zip(found, needs, strict=True)), *(None,) * 6


solve.register_autograd(_backward, setup_context=_save)
