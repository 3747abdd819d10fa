"""The block around a ham by fused kernels, from x to u = W_u M(W_l x) or to the end, and back.

The upper bread is folded into the dictionary: W_u (D C) = (W_u D) C = E C, so neither D C nor its product with W_u is
computed. The gradient is that of the read-out (one-step): D is a constant. Derivation: docs/design/block.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.kernels import block_launches, common
from hamburger.kernels.block_launches import NormCorrection
from hamburger.kernels.decompose import KERNELS, solve_factors
from hamburger.kernels.dispatch import BlockPlan, BreadWeights, NormParameters
from hamburger.kernels.launcher import Outputs, device_of, launch_cached
from hamburger.tensors import full_precision


class SolvedFactors(NamedTuple):
    """The result of a solve: D (b d r, float32), C (b n r), and the slope of `solve_factors`, empty without one."""

    bases: Tensor
    codes: Tensor
    slope: Tensor


def solve_ham(
    z: Tensor, n: int, kernel: str, options: Sequence[float], initial: Tensor, steps: int,
    *, keep: bool, counters: Tensor,
) -> SolvedFactors:  # fmt: skip
    """K steps from the bases `initial` (b d r, float32), and the read-out.   z: b d width, zero from n on

    counters: b, `common.COUNTERS_PER_IMAGE`, zero: for programs that wait for each other.
    """
    dtype, padded = common.saved_dtype(z.dtype), z.shape[2] > n
    bases, codes, _, slope = solve_factors(
        kernel, options, z[..., :n], initial, steps,
        keep=keep, product=False, dtype=dtype, padded=padded, counters=counters,
    )  # fmt: skip
    return SolvedFactors(bases, codes, _empty(z) if slope is None else slope)


def _empty(z: Tensor) -> Tensor:
    return z.new_empty(0, dtype=torch.float32)


def saves_input(kernel: str) -> bool:
    """Whether the gradient needs z, the output of the lower bread: for its ReLU, or to recompute the codes."""
    return KERNELS[kernel].rectify or KERNELS[kernel].slope is None


def pull_back_ham(
    du: Tensor, fold: Tensor, x: Tensor, z: Tensor, factors: SolvedFactors, plan: BlockPlan,
    correction: NormCorrection | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The cotangent of the lower bread, before its ReLU, from that of u = E C, and its sum over samples and positions.

    du, x: b c n   fold (E = W_u D): b c r   z: b d width   ->   b d n,  d
    Behind a batch norm in training du is the cotangent of its output, and fold is E': `block_launches.pull_back`.
    """
    kernel, n = KERNELS[plan.kernel], x.shape[2]
    if kernel.input_cotangent is not None:
        z = z[..., :n]
        dc = block_launches.codes_cotangent(du, fold, correction, plan.dtype)
        sums = block_launches.cotangent_sums(z, factors.bases.shape[2])
        dz = kernel.input_cotangent(z, None, dc, factors.bases, *plan.options, sums=sums)
        return dz, common.add_partial_sums(sums[None])[0]
    bases, ratio = (factors.bases, factors.slope) if kernel.slope == "codes" else (factors.slope, None)
    mask = z[..., :n] if kernel.rectify else None
    # the launch takes one set of strides for the mask and dz
    dz = (block_launches.empty_padded(x, bases.shape[1], plan.dtype) if mask is None else torch.empty_like(z))[..., :n]
    sums = block_launches.pull_back(du, fold, bases, ratio, mask, dz, plan.dtype, correction)
    return dz, common.add_partial_sums(sums[None])[0]


# -- the block up to its upper bread, and in evaluation ----------------------------------------------------------------


def block_context(x: Tensor, weights: BreadWeights, initial: Tensor, plan: BlockPlan) -> tuple[Tensor, Tensor]:
    """x: b c n   initial: (b or 1) d r (float32)   ->   u: b c n in plan.dtype,  the final bases: b d r"""
    differentiated = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *weights))
    if torch.compiler.is_compiling():
        u, bases, *_ = block_op(x, *weights, initial, *plan, differentiated)
        return u, bases
    if differentiated:
        u, bases = _Context.apply(x, *weights, initial, plan)
        return u, bases
    u, factors, *_ = _forward(x, weights, initial, plan, keep=False)
    return u, factors.bases


def evaluate_block(
    x: Tensor, weights: BreadWeights, initial: Tensor, plan: BlockPlan, norm: NormParameters | None, *, rectify: bool
) -> tuple[Tensor, Tensor]:
    """The whole block in evaluation, u never written: the norm of u, + x, then a ReLU. Not differentiated.

    x: b c n   initial: (b or 1) d r (float32)   ->   y: b c n, as x,  the final bases: b d r
    """

    def solve(x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, initial: Tensor, *of_norm: Any) -> Outputs:
        factors = solve_block(x, BreadWeights(lower, bias, upper), initial, plan, keep=False)
        y = torch.empty_like(x)
        folded = None if norm is None else NormParameters._make((*of_norm, norm.eps))
        block_launches.finish_block(factors.fold, factors.codes, y, plan.dtype, skip=x, norm=folded, rectify=rectify)
        return y, factors.bases

    inputs = (x, *weights, initial, *(() if norm is None else norm[:4]))
    with device_of(x):
        y, bases = launch_cached(solve, inputs, "evaluate", plan, norm and norm.eps, rectify, common.tf32_enabled())
    return y, bases


class BlockFactors(NamedTuple):
    """The factors of u = E C, and what led to them."""

    bases: Tensor  # b d r
    codes: Tensor  # b n r
    slope: Tensor  # see `SolvedFactors`
    fold: Tensor  # E = W_u D: b c r
    z: Tensor  # W_l x, padded with zeros: b d width
    lower: Tensor  # W_l in the dtype of the products: d c


def solve_block(
    x: Tensor, weights: BreadWeights, initial: Tensor, plan: BlockPlan, *, keep: bool, unit: bool = False
) -> BlockFactors:
    """x: b c n   initial: (b or 1) d r, to be normalised if `unit`"""
    dtype = plan.dtype
    ready = block_launches.prepare_inputs(weights.lower, initial, x.shape[0], dtype, unit=unit)
    z = block_launches.apply_bread(
        x, ready.lower, weights.bias, dtype, out=dtype, rectify=KERNELS[plan.kernel].rectify, padded=True
    )
    factors = solve_ham(
        z, x.shape[2], plan.kernel, plan.options, ready.initial, plan.steps, keep=keep, counters=ready.counters
    )
    # E = W_u D is a bread as well, of r columns
    fold = block_launches.apply_bread(
        factors.bases, weights.upper, None, dtype, out=common.saved_dtype(dtype), rectify=False
    )
    return BlockFactors(*factors, fold, z, ready.lower)


def _forward(
    x: Tensor, weights: BreadWeights, initial: Tensor, plan: BlockPlan, *, keep: bool
) -> tuple[Tensor, SolvedFactors, Tensor, Tensor]:
    """->   u: b c n,  the factors,  E: b c r,  z: b d width, empty if the gradient does not need it"""

    def solve(x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, initial: Tensor) -> Outputs:
        bases, codes, slope, fold, z, _ = solve_block(x, BreadWeights(lower, bias, upper), initial, plan, keep=keep)
        u = x.new_empty(x.shape[0], fold.shape[1], x.shape[2], dtype=plan.dtype)  # as norms like it best
        block_launches.finish_block(fold, codes, u, plan.dtype)
        if keep and not saves_input(plan.kernel):
            z = z.new_empty(0)
        return u, bases, codes, slope, fold, z

    with device_of(x):
        outputs = launch_cached(solve, (x, *weights, initial), "context", plan, keep, common.tf32_enabled())
    u, bases, codes, slope, fold, z = outputs
    return u, SolvedFactors(bases, codes, slope), fold, z


class SavedContext(NamedTuple):
    """The tensors saved for the backward pass."""

    x: Tensor
    lower: Tensor
    upper: Tensor
    z: Tensor
    bases: Tensor
    codes: Tensor
    slope: Tensor
    fold: Tensor


def gradients(du: Tensor, saved: SavedContext, plan: BlockPlan, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """The cotangents of x, lower, bias and upper, those that are needed.   du: b c n"""
    x, lower, upper, z, bases, codes, slope, fold = saved
    dx = dlower = dbias = dupper = None
    with torch.no_grad(), device_of(du), full_precision(du.device.type):
        if any(needs[:3]):
            dz, total = pull_back_ham(du, fold, x, z, SolvedFactors(bases, codes, slope), plan)
            if needs[0]:
                dx = input_gradient(x, lower.to(dz.dtype), dz)
            if needs[1]:
                dlower = sum_over_samples(torch.bmm(dz, x.to(dz.dtype).mT), lower.dtype)
            if needs[2]:
                dbias = total.to(lower.dtype)
        if needs[3]:
            dfold = torch.bmm(du.to(codes.dtype), codes)  # b c r
            dupper = sum_over_samples(torch.bmm(dfold, bases.to(codes.dtype).mT), upper.dtype)
    return dx, dlower, dbias, dupper


def sum_over_samples(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Their sum.   b d c   ->   d c"""
    return gradient[0].to(dtype) if gradient.shape[0] == 1 else gradient.sum(0, dtype=dtype)


def input_gradient(x: Tensor, lower: Tensor, dz: Tensor) -> Tensor:
    """W_l^T dZ, laid out as x, to which the gradient of the skip is added.   lower: d c   dz: b d n   ->   b c n"""
    weight = lower.expand(dz.shape[0], -1, -1)
    dx = torch.bmm(dz.mT, weight).mT if x.stride(1) == 1 else torch.bmm(weight.mT, dz)
    return dx.to(x.dtype)


class _Context(torch.autograd.Function):
    """`block_context` for eager calls: an operator of torch.library takes more CPU time than all its launches."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, initial: Tensor, plan: BlockPlan
    ) -> tuple[Tensor, Tensor]:
        keep = any(ctx.needs_input_grad[:4])
        u, factors, fold, z = _forward(x, BreadWeights(lower, bias, upper), initial, plan, keep=keep)
        ctx.plan = plan
        ctx.save_for_backward(*SavedContext(x, lower, upper, z, *factors, fold))
        ctx.mark_non_differentiable(factors.bases)
        ctx.set_materialize_grads(False)
        return u, factors.bases

    @staticmethod
    def backward(ctx: Any, du: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if du is None:
            return (None,) * 6
        plan, needs = ctx.plan, ctx.needs_input_grad[:4]

        def derive(du: Tensor, *saved: Tensor) -> tuple[Tensor | None, ...]:
            return gradients(du, SavedContext(*saved), plan, needs)

        return *common.first_derivative(derive, du, *ctx.saved_tensors), None, None


# -- operators for torch.compile ---------------------------------------------------------------------------------------


@torch.library.custom_op("hamburger::block_fused", mutates_args=())
def block_op(
    x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, initial: Tensor,
    kernel: str, options: Sequence[float], steps: int, dtype: torch.dtype, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`block_context`.   ->   u,  bases,  and z,  codes,  slope,  E, which are empty unless `keep`"""
    plan = BlockPlan(kernel, tuple(options), steps, dtype)
    u, (bases, codes, slope), fold, z = _forward(x, BreadWeights(lower, bias, upper), initial, plan, keep=keep)
    if not keep:
        z, codes, slope, fold = (x.new_empty(0) for _ in range(4))
    return u, bases, z, codes, slope, fold


@block_op.register_fake
def _(
    x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, initial: Tensor,
    kernel: str, options: Sequence[float], steps: int, dtype: torch.dtype, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (b, _, n), c, r, saved = x.shape, upper.shape[0], initial.shape[2], common.saved_dtype(dtype)
    u, bases = x.new_empty(b, c, n, dtype=dtype), initial.new_empty(b, *initial.shape[1:])
    if not keep:
        z, codes, slope, fold = (x.new_empty(0) for _ in range(4))
        return u, bases, z, codes, slope, fold
    z = block_launches.empty_padded(x, lower.shape[0], dtype) if saves_input(kernel) else x.new_empty(0, dtype=dtype)
    codes, fold = x.new_empty(b, n, r, dtype=saved), x.new_empty(b, c, r, dtype=saved)
    slope = torch.empty_like({"codes": codes, "bases": bases, None: _empty(x)}[KERNELS[kernel].slope])
    return u, bases, z, codes, slope, fold


@torch.library.custom_op("hamburger::block_fused_backward", mutates_args=())
def block_backward_op(
    du: Tensor, saved: Sequence[Tensor], kernel: str, options: Sequence[float], dtype: torch.dtype,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The cotangents of x, lower, bias and upper; empty where they are not needed.   saved: `SavedContext`"""
    grads = gradients(du, SavedContext(*saved), BlockPlan(kernel, tuple(options), 0, dtype), needs)
    dx, dlower, dbias, dupper = (du.new_empty(0) if g is None else g for g in grads)
    return dx, dlower, dbias, dupper


@block_backward_op.register_fake
def _(
    du: Tensor, saved: Sequence[Tensor], kernel: str, options: Sequence[float], dtype: torch.dtype,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x, lower, upper, *_ = saved
    grads = (
        block_launches.empty_like(x, x.shape[1], x.dtype),
        torch.empty_like(lower),
        lower.new_empty(lower.shape[0]),
        torch.empty_like(upper),
    )
    dx, dlower, dbias, dupper = (g if need else du.new_empty(0) for g, need in zip(grads, needs, strict=True))
    return dx, dlower, dbias, dupper


block_backward_op.register_autograd(common.refuse_second_derivative)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, lower, _, upper, _, ctx.kernel, ctx.options, _, ctx.dtype, _ = inputs
    _, bases, z, codes, slope, fold = output
    ctx.save_for_backward(*SavedContext(x, lower, upper, z, bases, codes, slope, fold))
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, du: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if du is None:
        return (None,) * 10
    needs = list(ctx.needs_input_grad[:4])
    grads = block_backward_op(du, list(ctx.saved_tensors), ctx.kernel, ctx.options, ctx.dtype, needs)
    return *(g if need else None for g, need in zip(grads, needs, strict=True)), *(None,) * 6


block_op.register_autograd(_backward, setup_context=_save)
