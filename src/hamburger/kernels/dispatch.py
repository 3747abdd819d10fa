"""The decision between fused kernels and plain torch, and what is passed to the kernels. Imports no Triton.

A call decides in two steps. `resolve_backend` looks at the backend, the environment and the device: on a CPU the answer
is "plain" and nothing else is looked at. `select_spec` then asks the ham for its `FusedSpec` and checks the input.
"""

from __future__ import annotations

import functools
import os
import warnings
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hamburger.errors import OptionError, check_choice
from hamburger.kernels.tiling import MAX_RANK
from hamburger.tensors import is_exporting, is_transformed

BACKENDS = ("auto", "plain", "fused")
BACKEND_VARIABLE = "HAM_BACKEND"  # environment variable: what "auto" means in this process
TRITON = find_spec("triton") is not None
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Shared memory in bytes that a program needs, by largest rank: an A100 has enough for 256, an H100 for 512, other GPUs
# often for neither.
SHARED_BYTES = {256: 160_000, 512: 170_000}


# -- what is passed to the kernels -------------------------------------------------------------------------------------


class FusedSpec(NamedTuple):
    """Which kernel solves a ham, and with which numbers. Every ham with a kernel returns one from `fused_spec()`."""

    kernel: str  # a name in `decompose.KERNELS`
    options: tuple[float, ...]  # nmf: eps   vq: temperature, constant_norms   cd: temperature, beta
    rank: int
    unsupported: str | None = None  # why the kernel cannot solve the ham with these options


class FusableHam(Protocol):
    """All that the dispatch asks of a ham."""

    def fused_spec(self) -> FusedSpec | None:
        """The spec; None for a ham without a kernel."""


class BlockPlan(NamedTuple):
    """A solve inside the fused block: kernel and options as in `FusedSpec`. `dtype` is that of the products."""

    kernel: str
    options: tuple[float, ...]
    steps: int
    dtype: torch.dtype


class BreadWeights(NamedTuple):
    """The weights of both breads.   lower: d c   bias: d   upper: c d"""

    lower: Tensor
    bias: Tensor | None
    upper: Tensor


class NormParameters(NamedTuple):
    """A batch norm in evaluation: its running statistics, and weight and bias if it has them. Each: c"""

    mean: Tensor
    var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float


class BatchNormState(NamedTuple):
    """A batch norm in training: the kernels update its running statistics."""

    norm: NormParameters
    momentum: float
    tracked: Tensor  # number of batches seen


class LaunchError(RuntimeError):
    """A kernel that Triton cannot compile here, or that the driver refuses to launch."""


# -- the decision ------------------------------------------------------------------------------------------------------


def choose_spec(
    backend: str, x: Tensor, ham: FusableHam, grad: object, *, one_step: bool, bases: Tensor | None = None
) -> FusedSpec | None:
    """The spec of the kernel that solves x, or None for plain torch; raise if backend "fused" cannot solve it.

    `grad` is the gradient strategy and `one_step` whether it is the one that the kernels implement.
    """
    requested = resolve_backend(backend, x)
    return None if requested == "plain" else select_spec(requested, x, ham, grad, one_step=one_step, bases=bases)


def resolve_backend(backend: str, x: Tensor) -> str:
    """Return "plain" where plain torch solves x in any case, "fused" where only the kernels may, else "auto"."""
    requested = os.environ.get(BACKEND_VARIABLE, "auto") if backend == "auto" else backend
    if requested not in BACKENDS:
        check_choice(BACKEND_VARIABLE if backend == "auto" else "decompose", "backend", requested, BACKENDS)
    if requested == "auto" and (not fused_by_default(x) or is_exporting()):
        return "plain"
    return requested


def select_spec(
    requested: str, x: Tensor, ham: FusableHam, grad: object, *, one_step: bool, bases: Tensor | None = None
) -> FusedSpec | None:
    """`choose_spec` for a backend that `resolve_backend` returned: "auto" or "fused"."""
    spec = ham.fused_spec()
    reason = why_not_fused(spec, x, ham, grad, one_step=one_step, bases=bases)
    if reason is not None and requested == "fused":
        raise OptionError(f"decompose: backend 'fused' cannot solve this: {reason}; take backend='plain' or 'auto'")
    return spec if reason is None else None


def fused_by_default(x: Tensor) -> bool:
    """Whether "auto" means the fused kernels for x."""
    return x.is_cuda and torch.version.hip is None and not _failures


_failures: list[LaunchError] = []  # of kernels without another variant: from then on "auto" means plain torch


def fall_back(error: LaunchError, backend: str) -> None:
    """Let "auto" mean plain torch in this process from now on, with a warning; raise where "fused" was requested."""
    if "fused" in (backend, os.environ.get(BACKEND_VARIABLE)):
        raise error
    _failures.append(error)
    warnings.warn(
        f"hamburger: the fused kernels do not work here, so plain torch takes over ({error}); {BACKEND_VARIABLE}=plain "
        "hides this warning",
        RuntimeWarning,
        stacklevel=4,
    )


def why_not_fused(
    spec: FusedSpec | None, x: Tensor, ham: object, grad: object, *, one_step: bool, bases: Tensor | None = None
) -> str | None:
    """Why the fused kernels cannot solve x; None if they can."""
    if spec is None:
        return f"there is no kernel for {type(ham).__name__}"
    if spec.unsupported is not None:
        return spec.unsupported
    if spec.rank > MAX_RANK:
        return f"the kernels take a rank of at most {MAX_RANK}, not {spec.rank}"
    if x.dtype not in DTYPES:
        return f"x is {x.dtype}, the kernels take float32, bfloat16 and float16"
    if 0 in x.shape:
        return f"x {tuple(x.shape)} is empty"
    differentiated = torch.is_grad_enabled() and (x.requires_grad or (bases is not None and bases.requires_grad))
    if differentiated and not one_step:
        return f"the kernels have the gradient 'one-step', not '{grad}'"
    if not TRITON:
        return "triton is not installed"
    if not torch.compiler.is_compiling() and is_transformed():
        return "the kernels do not support torch.func and forward-mode derivatives"
    return why_not_on_device(x.device, spec.rank)


def why_not_on_device(device: torch.device, rank: int) -> str | None:
    """Why no kernel of that rank runs on the device; None if one does."""
    from hamburger.kernels.common import INTERPRETED

    if INTERPRETED:
        return None
    if device.type != "cuda":
        return f"x is on {device.type}, the kernels run on cuda (and on the CPU in Triton's interpreter)"
    if torch.compiler.is_compiling():  # device properties cannot be traced; the first eager call checked them
        return None
    return why_too_small(shared_memory(device), rank)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Shared memory of a program in bytes. Cached: the query takes torch as long as a launch."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def why_too_small(shared: int, rank: int) -> str | None:
    """Why tiles of that rank do not fit a GPU with that much shared memory per program; None if they do."""
    needed = next(size for largest, size in SHARED_BYTES.items() if rank <= largest)
    if shared >= needed:
        return None
    return f"a rank of {rank} needs {needed:,} bytes of shared memory per program, and this GPU has {shared:,}"
