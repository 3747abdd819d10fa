"""Which program solves: plain torch, which does everything everywhere, or the fused kernels."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

import torch
from torch import Tensor

from hamburger.errors import OptionError, check_choice
from hamburger.hams.base import Ham
from hamburger.hams.cd import CD
from hamburger.hams.gradients import Gradient, one_step
from hamburger.hams.nmf import NMF
from hamburger.hams.vq import VQ
from hamburger.kernels.tiling import MAX_RANK
from hamburger.precision import widen

BACKENDS = ("auto", "plain", "fused")
VARIABLE = "HAM_BACKEND"  # what "auto" means, for a whole process
FUSED = (NMF, VQ, CD)
TRITON = find_spec("triton") is not None
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Bytes of shared memory that tiles up to a rank need: an A100 has room for 256, an H100 for 512, others often for none.
ROOM = {256: 160_000, 512: 170_000}


def fused_by_default(x: Tensor) -> bool:
    """Whether "auto" takes the fused kernels there."""
    return x.is_cuda and torch.version.hip is None


def fuses(backend: str, x: Tensor, ham: Ham, grad: Gradient, bases: Tensor | None) -> bool:
    """Whether the fused kernels solve this; a backend asked for by name that cannot raises."""
    forced = os.environ.get(VARIABLE, "auto") if backend == "auto" else backend
    check_choice(VARIABLE if backend == "auto" else "decompose", "backend", forced, BACKENDS)
    if forced == "plain" or (forced == "auto" and (not fused_by_default(x) or exporting())):
        return False
    reason = why_not(x, ham, grad, bases)
    if reason is not None and forced == "fused":
        raise OptionError(f"decompose: backend 'fused' cannot solve this: {reason}; take backend='plain' or 'auto'")
    return reason is None


def exporting() -> bool:
    """A graph that leaves this process has no use for kernels that live in it."""
    is_exporting = getattr(torch.compiler, "is_exporting", bool)  # not in torch 2.6
    return torch.onnx.is_in_onnx_export() or is_exporting()


def why_not(x: Tensor, ham: Ham, grad: Gradient, bases: Tensor | None) -> str | None:
    """Why the fused kernels cannot solve this; None where they can."""
    if type(ham) not in FUSED:  # a subclass may change any step
        return f"there are kernels for {', '.join(kind.__name__ for kind in FUSED)}, not for {type(ham).__name__}"
    if not ham.readout_updates:
        return "the kernels end with a final update of the codes, which final_update=False leaves out"
    if isinstance(ham, NMF) and ham.codes_init != "softmax":
        return f"the kernels start from codes_init='softmax', not from {ham.codes_init!r}"
    if ham.rank > MAX_RANK:
        return f"the kernels have room for a rank of at most {MAX_RANK}, not for {ham.rank}"
    if x.dtype not in DTYPES:
        return f"x is {x.dtype}, the kernels take float32, bfloat16 and float16"
    if 0 in x.shape:
        return f"x {tuple(x.shape)} is empty"
    differentiated = torch.is_grad_enabled() and (x.requires_grad or (bases is not None and bases.requires_grad))
    if differentiated and grad != one_step:
        return f"the kernels have the gradient 'one-step', not '{grad}'"
    if not TRITON:
        return "triton is not installed"
    if not torch.compiler.is_compiling() and transformed():
        return "the kernels have no rule for torch.func and for derivatives in forward mode"
    return why_not_there(x.device, ham.rank)


def transformed() -> bool:
    """Whether somebody takes derivatives, or maps over samples, in a way that kernels know nothing of."""
    functions_of_functions: bool = torch._C._are_functorch_transforms_active()
    return functions_of_functions or torch.autograd.forward_ad._current_level >= 0


def why_not_there(device: torch.device, rank: int) -> str | None:
    """Why no kernel of that rank runs on such a device."""
    from hamburger.kernels.launcher import INTERPRETED

    if INTERPRETED:
        return None
    if device.type != "cuda":
        return f"x is on {device.type}, the kernels run on cuda (and on the CPU in Triton's interpreter)"
    if torch.compiler.is_compiling():  # it cannot look at the card; the first eager call did
        return None
    return why_too_small(shared_memory(device), rank)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program can have there. Torch takes as long to say so as a launch does."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def why_too_small(shared: int, rank: int) -> str | None:
    """Why tiles of that rank do not fit a card with so many bytes of shared memory for a program."""
    needed = next(room for most, room in ROOM.items() if rank <= most)
    if shared >= needed:
        return None
    return f"a rank of {rank} needs {needed:,} bytes of shared memory in a program, and this card has {shared:,}"


# ----------------------------------------------------------------------------------------------------------------------
# A ham's sweeps, read-out and product by the fused kernels: triton is imported when the first is run.


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
        from hamburger.kernels import nmf

        return nmf.decompose(x, start, steps=steps, eps=ham.eps)
    if isinstance(ham, VQ):
        from hamburger.kernels import vq

        return vq.decompose(x, start, steps=steps, temperature=ham.temperature, constant_norms=ham.constant_norms)
    if isinstance(ham, CD):
        from hamburger.kernels import cd

        return cd.decompose(x, start, steps=steps, temperature=ham.temperature, beta=ham.beta)
    raise OptionError(f"decompose: backend 'fused' has no kernels for {type(ham).__name__}; take backend='plain'")
