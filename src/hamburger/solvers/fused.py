"""A ham's sweeps, read-out and product by the fused kernels: triton is imported when the first is run."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.errors import OptionError
from hamburger.precision import widen
from hamburger.solvers.base import Ham
from hamburger.solvers.cd import CD
from hamburger.solvers.nmf import NMF
from hamburger.solvers.vq import VQ


def solve(
    x: Tensor, ham: Ham, *, steps: int, bases: Tensor | None, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """x: b d n   bases: (b or 1) d r   ->   bases: b d r,  codes: b r n,  D C: b d n"""
    with torch.no_grad():
        if bases is None:
            start = ham.draw(x.shape[0], x.shape[1], like=widen(x[:0]), generator=generator)
        else:
            start = bases.float().expand(x.shape[0], -1, -1)
    if isinstance(ham, NMF):
        from hamburger.ops.nmf import fused as nmf

        return nmf.decompose(x, start, steps=steps, eps=ham.eps)
    if isinstance(ham, VQ):
        from hamburger.ops.vq import fused as vq

        return vq.decompose(x, start, steps=steps, temperature=ham.temperature, constant_norms=ham.constant_norms)
    if isinstance(ham, CD):
        from hamburger.ops.cd import fused as cd

        return cd.decompose(x, start, steps=steps, temperature=ham.temperature, beta=ham.beta)
    raise OptionError(f"decompose: backend 'fused' has no kernels for {type(ham).__name__}; take backend='plain'")
