"""The ham inside the block: its factors, and how a cotangent of its codes becomes one of its input.

Everything that the block asks of a ham is asked here. Its name and numbers: see `Plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.block import Plan, launches
from hamburger.ops.block.launches import Taken
from hamburger.ops.cd import fused as cd
from hamburger.ops.nmf import fused as nmf
from hamburger.ops.vq import fused as vq


class Factors(NamedTuple):
    """What a solve found: D (b d r, float32) and C (b n r), and what is kept for the gradient of the read-out.

    `slope` is Q = C / (D^T D C + eps) for NMF (b n r) and the ridge projector for CD (transposed: b d r), empty for VQ
    and where no gradient was asked for.
    """

    bases: Tensor
    codes: Tensor
    slope: Tensor


def rectifies(ham: str) -> bool:
    """Whether the lower bread ends in a ReLU."""
    return ham == "nmf"


def factors(
    z: Tensor, ham: str, options: Sequence[float], initial: Tensor, steps: int, *, keep: bool, counts: Tensor
) -> Factors:
    """K sweeps from the bases `initial` (b d r, float32), and the read-out.   z: b d n

    counts: b, `launch.COUNTS`, zero: for programs that wait for each other.
    """
    dtype = launch.kept_dtype(z.dtype)
    if ham == "nmf":
        bases, codes, _, slope = nmf.factors(
            z, initial, steps, options[0], keep=keep, product=False, codes=dtype, counts=counts
        )
    elif ham == "vq":
        bases, codes, _ = vq.factors(z, initial, steps, options[0], product=False, codes=dtype, counts=counts)
        slope = None
    else:
        temperature, beta = options
        bases, codes, _, slope = cd.factors(
            z, initial, steps, temperature, beta, keep=keep, product=False, codes=dtype, counts=counts
        )
    return Factors(bases, codes, _nothing(z) if slope is None else slope)


def _nothing(z: Tensor) -> Tensor:
    return z.new_empty(0, dtype=torch.float32)


def keeps_input(ham: str) -> bool:
    """Whether the gradient needs z: NMF's for its ReLU, VQ's to make the codes again. CD's read-out is linear."""
    return ham != "cd"


def pull_back(
    du: Tensor, fold: Tensor, x: Tensor, z: Tensor, found: Factors, plan: Plan, taken: Taken | None = None
) -> tuple[Tensor, Tensor]:
    """The cotangent of the lower bread, before its ReLU, from that of u = E C, and its sum over samples and positions.

    du, x: b c n   fold (E = W_u D): b c r   z: b d n, laid out as x   ->   b d n,  d
    Behind a batch norm in training du is the cotangent of its output, and fold is E': `launches.pull_back`.
    """
    if plan.ham == "vq":
        temperature, constant_norms = plan.options
        if taken is None:
            dc = launches.codes_of(du, fold, plan.dtype)
        else:
            dc = launches.cotangent(du, fold, taken, plan.dtype)
        sums = vq.sums_of(z, found.bases.shape[2])
        dz = vq.input_cotangent(z, None, dc, found.bases, temperature, bool(constant_norms), sums)
        return dz, launch.total(sums[None])[0]
    if plan.ham == "nmf":
        dz = torch.empty_like(z)  # its kernel takes one set of strides for both
        sums = launches.pull_back(du, fold, found.bases, found.slope, z, dz, plan.dtype, taken)
    else:
        dz = launches.empty_like(x, found.bases.shape[1], plan.dtype)
        sums = launches.pull_back(du, fold, found.slope, None, None, dz, plan.dtype, taken)
    return dz, launch.total(sums[None])[0]
