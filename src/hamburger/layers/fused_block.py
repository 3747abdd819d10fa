"""When a Hamburger runs as one fused block, and how. Everything else takes the modules one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from hamburger import distributed
from hamburger.layers import norm as norms
from hamburger.layers.bread import Bread
from hamburger.layers.dictionary import Dictionary
from hamburger.layers.ham import HamLayer
from hamburger.ops.block import Norm, Plan, Weights
from hamburger.precision import autocast_dtype
from hamburger.solvers.backend import DTYPES, exporting, fuses
from hamburger.solvers.base import Ham
from hamburger.solvers.cd import CD
from hamburger.solvers.grad import one_step
from hamburger.solvers.nmf import NMF
from hamburger.solvers.vq import VQ

if TYPE_CHECKING:
    from hamburger.layers.burger import Hamburger

# In evaluation all of them are the running statistics, weight and bias.
BATCH_NORMS = (nn.BatchNorm1d, nn.SyncBatchNorm, norms.BatchNorm1d, norms.SyncBatchNorm)


def plan(layer: Hamburger, x: Tensor) -> Plan | None:
    """How the fused block would solve it; None where the layer has another form.   x: b c n"""
    ham, lower = layer.ham, layer.lower
    if lower is None or ham is None or not _fits(layer) or type(x) is not Tensor:
        return None
    dtype = _compute_dtype(x, lower)
    if dtype not in DTYPES or lower.weight.dtype not in DTYPES or _traced():
        return None
    if torch.is_grad_enabled() and ham.grad != one_step:
        return None
    if not fuses(ham.backend, x, ham.ham, ham.grad, None):
        return None
    return Plan(*_numbers(ham.ham), ham.steps if ham.training else ham.eval_steps, dtype)


def _fits(layer: Hamburger) -> bool:
    """Bread, one ham along positions, bread: all of the library's own kind, and nobody looking on."""
    ham, upper = layer.ham, layer.upper
    return (
        layer.cheese is None
        and layer.channel_ham is None
        and _bare(layer.lower, Bread)
        and _bare(upper, Bread)
        and _bare(ham, HamLayer)
        and isinstance(ham, HamLayer)
        and ham.heads == 1
        and _bare(ham.dictionary, Dictionary)
        and isinstance(upper, Bread)
        and upper.bias is None
        and layer.rectify == ham.ham.nonnegative
    )


def _bare(module: nn.Module | None, kind: type[nn.Module]) -> bool:
    """A module that may be passed over: exactly of that kind, with no hook and no forward of its own."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _traced() -> bool:
    """Whether somebody records what the modules do: kernels leave no trace of themselves."""
    if torch.compiler.is_compiling():
        return exporting()
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or exporting() or bool(_has_any_global_hook())


def _compute_dtype(x: Tensor, lower: Bread) -> torch.dtype:
    """As in `Bread`: float16 autocast is not obeyed."""
    cast = autocast_dtype(x.device.type)
    if cast is None:
        return lower.weight.dtype
    return torch.float32 if cast == torch.float16 else cast


def _numbers(ham: Ham) -> tuple[str, tuple[float, ...]]:
    """A ham as a `Plan` names it."""
    if isinstance(ham, NMF):
        return "nmf", (ham.eps,)
    if isinstance(ham, VQ):
        return "vq", (ham.temperature, float(ham.constant_norms))
    assert isinstance(ham, CD)
    return "cd", (ham.temperature, ham.beta)


def context(layer: Hamburger, x: Tensor, how: Plan) -> Tensor:
    """The layer up to its upper bread.   x: b c n   ->   b c n"""
    from hamburger.ops.block import fused

    u, bases = fused.context(x, _weights(layer), _start(layer, x), how)
    _update(layer, bases)
    return u


def finishes(layer: Hamburger) -> bool:
    """Whether norm, skip and ReLU can join the last pass: no graph, and a norm that is a scale and a shift."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    norm = layer.norm
    if _bare(norm, nn.Identity):
        return True
    if norm.training or not any(_bare(norm, kind) for kind in BATCH_NORMS):
        return False
    return norm.running_mean is not None and (norm.weight is None) == (norm.bias is None)


def finished(layer: Hamburger, x: Tensor, how: Plan) -> Tensor:
    """The whole layer without a graph.   x: b c n   ->   b c n"""
    from hamburger.ops.block import fused

    rectify = layer.version != "paper"
    y, bases = fused.finished(x, _weights(layer), _start(layer, x), how, _norm(layer.norm), rectify=rectify)
    _update(layer, bases)
    return y


def _weights(layer: Hamburger) -> Weights:
    assert layer.lower is not None and layer.upper is not None
    return Weights(layer.lower.weight, layer.lower.bias, layer.upper.weight)


def _norm(norm: nn.Module) -> Norm | None:
    if isinstance(norm, nn.Identity):
        return None
    return Norm(norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps)  # type: ignore[arg-type]


def _start(layer: Hamburger, x: Tensor) -> Tensor:
    """The first bases, as `HamLayer` takes or draws them.   x: b c n   ->   (b or 1) d r in float32"""
    ham = layer.ham
    assert ham is not None and isinstance(ham.dictionary, Dictionary)
    ham.ham.check(ham.dim, x.shape[2])
    dictionary = ham.dictionary
    if dictionary.init in ("fixed", "online") or (dictionary.init == "random" and not dictionary.training):
        return dictionary.bases.float().contiguous()  # itself, as a rule: one for all samples
    with torch.no_grad():
        bases = dictionary(x)
        if bases is None:
            like = x.new_empty(0, dtype=torch.float32)
            bases = distributed.joined_draw(lambda rows: ham.ham.draw(rows, ham.dim, like=like), x.shape[0])
        return bases.float().contiguous()


def _update(layer: Hamburger, bases: Tensor) -> None:
    assert layer.ham is not None
    if layer.ham.dictionary.init == "online":
        layer.ham.dictionary.update(bases)
