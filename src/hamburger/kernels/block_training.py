"""The whole block in training with batch norm, forward and back: neither u nor the normalised u is written.

The norm needs only sums over codes: see `block_norm`, and docs/design/block.md for the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.kernels import block, block_launches, block_norm, common
from hamburger.kernels.block import SolvedFactors
from hamburger.kernels.block_norm import BatchStatistics
from hamburger.kernels.dispatch import BatchNormState, BlockPlan, BreadWeights, NormParameters
from hamburger.kernels.launcher import (
    Outputs,
    PackedTensors,
    device_of,
    launch_cached,
    launch_cached_saving,
)
from hamburger.tensors import full_precision


class TrainingPlan(NamedTuple):
    block: BlockPlan
    eps: float  # of the norm
    momentum: float
    rectify: bool  # a ReLU at the end
    unit: bool  # the columns of the first bases are to be normalised


def train_block(
    x: Tensor, weights: BreadWeights, initial: Tensor, plan: BlockPlan, batch: BatchNormState,
    *, rectify: bool, unit: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x + BN(W_u M(W_l x)), then a ReLU, with a gradient; updates the running statistics.

    x: b c and further axes, joined here to save torch two nodes of its graph.   initial: (b or 1) d r (float32)
    ->   y, as x,  the final bases: b d r
    """
    training = TrainingPlan(plan, batch.norm.eps, batch.momentum, rectify, unit)
    norm = batch.norm
    y, bases = _TrainBlock.apply(
        x, *weights, norm.weight, norm.bias, initial, norm.mean, norm.var, batch.tracked, training
    )  # fmt: skip
    return y, bases


class SavedIntermediates(NamedTuple):
    """Internal tensors saved for the backward pass."""

    codes: Tensor
    slope: Tensor
    fold: Tensor
    z: Tensor
    lower: Tensor  # rounded; empty if it is the parameter itself
    mean: Tensor
    var: Tensor
    total: Tensor


def _forward(plan: TrainingPlan, *inputs: Tensor | None) -> tuple[Outputs, PackedTensors]:
    """->   y and the bases,  `SavedIntermediates`, packed"""

    def solve(
        x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, gamma: Tensor, beta: Tensor, initial: Tensor,
        running_mean: Tensor, running_var: Tensor, tracked: Tensor,
    ) -> tuple[Outputs, Outputs]:  # fmt: skip
        flat = x.flatten(2)
        with full_precision(x.device.type):
            factors = block.solve_block(
                flat, BreadWeights(lower, bias, upper), initial, plan.block, keep=True, unit=plan.unit
            )
        batch = BatchNormState(NormParameters(running_mean, running_var, gamma, beta, plan.eps), plan.momentum, tracked)
        statistics = block_norm.batch_statistics(factors.fold, factors.codes, batch, plan.block.dtype)
        # no view of something flat: such an output of a Function could not be changed in place
        y = torch.empty_like(x) if flat.data_ptr() == x.data_ptr() else x.new_empty(x.shape)
        norm = NormParameters(statistics.mean, statistics.var, gamma, beta, plan.eps)
        block_launches.finish_block(
            factors.fold, factors.codes, y.flatten(2), plan.block.dtype, skip=flat, norm=norm, rectify=plan.rectify
        )
        z = factors.z if block.saves_input(plan.block.kernel) else x.new_empty(0)
        # saved tensors must be memory of the cached launches
        rounded = x.new_empty(0) if factors.lower.data_ptr() == lower.data_ptr() else factors.lower
        return (y, factors.bases), SavedIntermediates(
            factors.codes, factors.slope, factors.fold, z, rounded, *statistics
        )

    x = inputs[0]
    assert x is not None
    with device_of(x):
        return launch_cached_saving(solve, inputs, "train", plan, common.tf32_enabled())


class SavedTensors(NamedTuple):
    """Inputs and outputs of the forward pass that are saved for the backward pass."""

    x: Tensor
    y: Tensor | None  # if it ends in a ReLU
    lower: Tensor
    upper: Tensor
    gamma: Tensor
    bases: Tensor


def gradients(
    dy: Tensor, saved: SavedTensors, packed: PackedTensors, plan: TrainingPlan, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The cotangents of x, lower, bias, upper, gamma and beta, those that are needed.   dy: b c n   ->   x's: b c n"""
    dtype = plan.block.dtype

    def solve(dy: Tensor, x: Tensor, y: Tensor, lower: Tensor, upper: Tensor, gamma: Tensor, bases: Tensor,
              *packed_memory: Tensor) -> Outputs:  # fmt: skip
        k, x = SavedIntermediates(*PackedTensors(packed_memory, packed.layout).tensors()), x.flatten(2)
        norm, statistics = NormParameters(k.mean, k.var, gamma, None, plan.eps), BatchStatistics(k.mean, k.var, k.total)
        back = block_norm.norm_backward(
            dy, None if y is None else y.flatten(2), k.fold, k.codes, statistics, norm, dtype
        )
        dupper = block_launches.weight_backward(back.dfold, bases, upper.dtype, common.factor_product_kind(dtype))
        dz, dbias = block.pull_back_ham(
            back.ds, back.scaled, x, k.z, SolvedFactors(bases, k.codes, k.slope), plan.block, back.correction
        )
        lower = k.lower if k.lower.numel() else lower
        dx, dlower = _lower_bread_backward(back.ds, dz, x, lower, dtype, fresh=plan.rectify, needs=needs)
        return dx, dlower, dbias, dupper, back.dgamma, back.dbeta

    with device_of(dy):
        grads = launch_cached(
            solve, (dy, *saved, *packed.memory), "train backward", plan, packed.layout, common.tf32_enabled(), *needs
        )
    return tuple([g if need else None for g, need in zip(grads, needs, strict=True)])


def _lower_bread_backward(
    ds: Tensor, dz: Tensor, x: Tensor, lower: Tensor, dtype: torch.dtype, *, fresh: bool, needs: Sequence[bool]
) -> tuple[Tensor, Tensor]:
    """dS + W_l^T dZ, in place if dS is `fresh`, and the sum of dZ x^T over samples; those that are needed.

    ds: b c n   dz: b d n   ->   b c n,  d c
    """
    dx, dlower = ds.new_empty(0), ds.new_empty(0)
    if block_launches.uses_cublas(dtype):
        with full_precision(ds.device.type):
            if needs[1]:
                dlower = block.sum_over_samples(torch.bmm(dz, x.to(dz.dtype).mT), lower.dtype)
            if needs[0]:
                dx = block.input_gradient(x, lower.to(dz.dtype), dz) + ds
        return dx, dlower
    if needs[1]:
        dlower = block_launches.weight_backward(dz, x, torch.float32, common.product_kind(dtype))
    if needs[0]:
        dx = ds if fresh else torch.empty_like(x)
        block_launches.bread_backward(ds, dz, lower, dx, dtype)
    return dx, dlower


class _TrainBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, gamma: Tensor, beta: Tensor,
        initial: Tensor, running_mean: Tensor, running_var: Tensor, tracked: Tensor, plan: TrainingPlan,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        inputs = x, lower, bias, upper, gamma, beta, initial, running_mean, running_var, tracked
        (y, bases), packed = _forward(plan, *inputs)
        ctx.plan, ctx.layout, ctx.dtypes = plan, packed.layout, (lower.dtype, None if bias is None else bias.dtype)
        ctx.save_for_backward(*SavedTensors(x, y if plan.rectify else None, lower, upper, gamma, bases), *packed.memory)
        ctx.mark_non_differentiable(bases)
        ctx.set_materialize_grads(False)
        return y, bases

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 11
        plan, layout, needs = ctx.plan, ctx.layout, ctx.needs_input_grad[:6]

        def derive(dy: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            return gradients(dy, SavedTensors(*tensors[:6]), PackedTensors(tensors[6:], layout), plan, needs)

        dx, dlower, dbias, *rest = common.first_derivative(derive, dy.flatten(2), *ctx.saved_tensors)
        dx = None if dx is None else dx.view(dy.shape)
        dlower = None if dlower is None else dlower.to(ctx.dtypes[0])
        dbias = None if dbias is None else dbias.to(ctx.dtypes[1])
        return dx, dlower, dbias, *rest, None, None, None, None, None
