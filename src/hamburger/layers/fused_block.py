"""When a Hamburger runs as one fused block, and how. Everything else takes the modules one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _has_any_global_hook

from hamburger import distributed
from hamburger.hams.base import Ham
from hamburger.hams.cd import CD
from hamburger.hams.fused import DTYPES, exporting, fuses
from hamburger.hams.gradients import one_step
from hamburger.hams.nmf import NMF
from hamburger.hams.vq import VQ
from hamburger.kernels.dispatch import BatchNormState, BlockPlan, BreadWeights, NormParameters
from hamburger.layers import norm as norms
from hamburger.layers.bread import Bread
from hamburger.layers.dictionary import Dictionary
from hamburger.layers.ham import HamLayer
from hamburger.precision import autocast_dtype

if TYPE_CHECKING:
    from hamburger.layers.burger import Hamburger

PLAIN = (nn.BatchNorm1d, norms.BatchNorm1d)
# In evaluation all of them are the running statistics, weight and bias.
BATCH_NORMS = (nn.BatchNorm1d, nn.SyncBatchNorm, norms.BatchNorm1d, norms.SyncBatchNorm)


class Parts(NamedTuple):
    """A layer of the kind that can be fused, taken apart once: each look into a module costs the host a microsecond."""

    ham: HamLayer
    norm: nn.Module
    dictionary: Dictionary
    weights: BreadWeights


def parts(layer: Hamburger) -> Parts | None:
    """Bread, one ham along positions, bread: all of the library's own kind, and nobody looking on. None otherwise."""
    of = layer._modules.get
    lower, ham, upper, norm = of("lower"), of("ham"), of("upper"), of("norm")
    if type(ham) is not HamLayer or of("cheese") is not None or of("channel_ham") is not None or norm is None:
        return None
    dictionary = ham._modules["dictionary"]
    if type(lower) is not Bread or type(upper) is not Bread or type(dictionary) is not Dictionary or ham.heads != 1:
        return None
    if not (_bare(lower) and _bare(upper) and _bare(ham) and _bare(dictionary)):
        return None
    down, up = lower._parameters.get("weight"), upper._parameters.get("weight")
    if down is None or up is None or upper._parameters.get("bias") is not None:
        return None
    bias = lower._parameters.get("bias")
    if layer.rectify != ham.ham.nonnegative or not _dense(bias):
        return None
    return Parts(ham, norm, dictionary, BreadWeights(down, bias, up))


def plan(p: Parts, x: Tensor) -> BlockPlan | None:
    """How the fused block would solve it; None where it would not.   x: b c ..."""
    if type(x) is not Tensor:
        return None
    ham, dtype = p.ham, _compute_dtype(x, p.weights.lower)
    if dtype not in DTYPES or p.weights.lower.dtype not in DTYPES or _traced():
        return None
    if x.get_device() != p.weights.lower.get_device():  # torch says what is wrong; a kernel would read wild memory
        return None
    if torch.is_grad_enabled() and ham.grad != one_step:
        return None
    if not fuses(ham.backend, x, ham.ham, ham.grad, None):
        return None
    return BlockPlan(*_numbers(ham.ham), ham.steps if ham.training else ham.eval_steps, dtype)


def _bare(module: nn.Module) -> bool:
    """A module that may be passed over: it has no hook and no forward of its own."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _dense(*vectors: Tensor | None) -> bool:
    """Kernels take vectors number by number; a view of something else may have gaps."""
    return all(each is None or each.is_contiguous() for each in vectors)


def _traced() -> bool:
    """Whether somebody records what the modules do: kernels leave no trace of themselves."""
    if torch.compiler.is_compiling():
        return exporting()
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or exporting() or bool(_has_any_global_hook())


def _compute_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """As in `Bread`: float16 autocast is not obeyed."""
    cast = autocast_dtype(x.device.type)
    if cast is None:
        return weight.dtype
    return torch.float32 if cast == torch.float16 else cast


def _numbers(ham: Ham) -> tuple[str, tuple[float, ...]]:
    """A ham as a `Plan` names it."""
    if isinstance(ham, NMF):
        return "nmf", (ham.eps,)
    if isinstance(ham, VQ):
        return "vq", (ham.temperature, float(ham.constant_norms))
    assert isinstance(ham, CD)
    return "cd", (ham.temperature, ham.beta)


def whole(layer: Hamburger, z: Tensor) -> Tensor | None:
    """The layer with its norm, skip and ReLU; None where they have to follow one by one.

    z: b c and one to three further axes   ->   the same
    """
    p = None if torch.compiler.is_compiling() else parts(layer)
    if p is None:
        return None
    way = finished if finishes(p.norm) else trained if trains(p.norm, z) else None
    how = None if way is None else plan(p, z)
    return None if way is None or how is None else way(p, z, how, rectify=layer.version != "paper")


def up_to_the_norm(layer: Hamburger, x: Tensor) -> Tensor | None:
    """The layer up to its upper bread; None where it has another form.   x: b c n   ->   b c n"""
    p = parts(layer)
    how = None if p is None else plan(p, x)
    return None if p is None or how is None else context(p, x, how)


def context(p: Parts, x: Tensor, how: BlockPlan) -> Tensor:
    from hamburger.kernels import block

    u, bases = block.block_context(x, p.weights, _start(p, x)[0], how)
    _update(p, bases)
    return u


def finishes(norm: nn.Module) -> bool:
    """Whether norm, skip and ReLU can join the last pass: no graph, and a norm that is a scale and a shift."""
    if torch.is_grad_enabled() or not _bare(norm):
        return False
    if type(norm) is nn.Identity:
        return True
    if norm.training or type(norm) not in BATCH_NORMS:
        return False
    of, kept = norm._parameters, norm._buffers
    if kept["running_mean"] is None or (of["weight"] is None) != (of["bias"] is None):
        return False
    return _dense(kept["running_mean"], kept["running_var"], of["weight"], of["bias"])


def finished(p: Parts, z: Tensor, how: BlockPlan, *, rectify: bool) -> Tensor:
    """The whole layer without a graph."""
    from hamburger.kernels import block

    x = z.flatten(2)  # b c n
    y, bases = block.evaluate_block(x, p.weights, _start(p, x)[0], how, _norm(p.norm), rectify=rectify)
    _update(p, bases)
    return y.view(z.shape)


def trains(norm: nn.Module, x: Tensor) -> bool:
    """Whether norm, skip and ReLU can join in training: batch norm of this process alone, which follows a momentum."""
    if not norm.training or not torch.is_grad_enabled() or not _bare(norm):
        return False
    if not isinstance(norm, _BatchNorm) or type(norm) not in BATCH_NORMS or x.dtype == torch.float16:
        return False
    if type(norm) not in PLAIN and distributed.world() > 1:
        return False
    many = x.numel() > x.shape[1]  # one value has no variance
    if not (many and norm.affine and norm.track_running_stats and norm.momentum is not None):
        return False
    of, kept = norm._parameters, norm._buffers
    return _dense(kept["running_mean"], kept["running_var"], of["weight"], of["bias"])


def trained(p: Parts, x: Tensor, how: BlockPlan, *, rectify: bool) -> Tensor:
    """The whole layer in training."""
    from hamburger.kernels import block_training

    norm, (start, unit) = p.norm, _start(p, x, raw=True)
    batch = BatchNormState(_norm(norm), norm.momentum, norm._buffers["num_batches_tracked"])  # type: ignore[arg-type]
    y, bases = block_training.train_block(x, p.weights, start, how, batch, rectify=rectify, unit=unit)
    _update(p, bases)
    return y


def _norm(norm: nn.Module) -> NormParameters | None:
    if isinstance(norm, nn.Identity):
        return None
    of, kept = norm._parameters, norm._buffers
    return NormParameters(kept["running_mean"], kept["running_var"], of["weight"], of["bias"], norm.eps)  # type: ignore[arg-type]


def _start(p: Parts, x: Tensor, *, raw: bool = False) -> tuple[Tensor, bool]:
    """The first bases, as `HamLayer` takes or draws them, and whether their columns are still to be normalised.

    x: b c ...   ->   (b or 1) d r in float32.   `raw`: what is drawn is left as it is drawn
    """
    ham, dictionary = p.ham, p.dictionary
    ham.ham.check(ham.dim, x.shape[2:].numel())
    if dictionary.init == "learned":
        with torch.no_grad():
            return dictionary(x).float().contiguous(), False
    bases = dictionary.bases
    if dictionary.init != "random" or not dictionary.training:
        return bases.float().contiguous(), False  # itself, as a rule: one for all samples
    draw = ham.ham.sample if raw else ham.ham.draw
    like = bases if bases.dtype == torch.float32 else bases.new_empty(0, dtype=torch.float32)
    bases = distributed.joined_draw(lambda rows: draw(rows, ham.dim, like=like), x.shape[0])
    return bases.contiguous(), raw


def _update(p: Parts, bases: Tensor) -> None:
    if p.dictionary.init == "online":
        p.dictionary.update(bases)
