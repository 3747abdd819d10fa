"""Run a Hamburger as one fused block of kernels. `plan_block` decides; layers it refuses run module by module.

The block has three variants: `evaluate` (no graph; norm, skip and ReLU included), `train` (with the gradient; batch
norm, skip and ReLU included) and `context` (up to the upper bread; the layer's norm, skip and ReLU follow).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger import distributed
from hamburger.hams.base import COLUMNS, spread_positions
from hamburger.hams.decompose import one_step
from hamburger.kernels.dispatch import (
    DTYPES,
    BatchNormState,
    BlockPlan,
    BreadWeights,
    NormParameters,
    select_spec,
)
from hamburger.layers import norm as norms
from hamburger.layers.ham import Bread, Dictionary, HamLayer
from hamburger.tensors import autocast_dtype, is_exporting

if TYPE_CHECKING:
    from hamburger.layers.burger import Hamburger

LOCAL_BATCH_NORMS = (nn.BatchNorm1d, norms.BatchNorm1d)  # statistics of this process alone
# In evaluation each of them is a scale and a shift by running statistics, weight and bias.
BATCH_NORMS = (*LOCAL_BATCH_NORMS, nn.SyncBatchNorm, norms.SyncBatchNorm)
# Hooks on every module, as `nn.modules.module.register_module_forward_hook` adds them; torch fills these dictionaries.
GLOBAL_HOOKS: list[dict[int, Any]] = [
    getattr(torch_module, f"_global_{kind}_hooks") for kind in ("forward", "forward_pre", "backward", "backward_pre")
]


class BlockParts(NamedTuple):
    """The modules and weights of a layer that can be fused, looked up once: each lookup costs a microsecond of CPU."""

    ham: HamLayer
    norm: nn.Module
    dictionary: Dictionary
    lower: Bread
    weights: BreadWeights


class FusedBlock(NamedTuple):
    """A layer that runs as a fused block."""

    parts: BlockParts
    plan: BlockPlan


def plan_block(layer: Hamburger, x: Tensor, requested: str) -> FusedBlock | None:
    """The fused block of the layer for x (b c ...), or None. `requested`: what `resolve_backend` returned."""
    parts = find_parts(layer)
    plan = None if parts is None else make_plan(parts, x, requested)
    return None if parts is None or plan is None else FusedBlock(parts, plan)


def find_parts(layer: Hamburger) -> BlockParts | None:
    """The parts of lower bread, one ham along positions, upper bread; None for other layers and modules with hooks."""
    get = layer._modules.get
    lower, ham, upper, norm = get("lower"), get("ham"), get("upper"), get("norm")
    if type(ham) is not HamLayer or get("cheese") is not None or get("channel_ham") is not None or norm is None:
        return None
    dictionary = ham._modules["dictionary"]
    if isinstance(dictionary, Dictionary) and dictionary.init == "carry" and not dictionary.training:
        return None  # the kernels keep no bases from call to call
    if type(lower) is not Bread or type(upper) is not Bread or type(dictionary) is not Dictionary or ham.heads != 1:
        return None
    if not (_is_unhooked(lower) and _is_unhooked(upper) and _is_unhooked(ham) and _is_unhooked(dictionary)):
        return None
    down, up = lower._parameters.get("weight"), upper._parameters.get("weight")
    if down is None or up is None or upper._parameters.get("bias") is not None:
        return None
    bias = lower._parameters.get("bias")
    if layer.rectify != ham.ham.nonnegative or not _are_contiguous(bias):
        return None
    return BlockParts(ham, norm, dictionary, lower, BreadWeights(down, bias, up))


def make_plan(parts: BlockParts, x: Tensor, requested: str) -> BlockPlan | None:
    """The kernel, its options and its precision for x (b c ...); None where the kernels do not apply."""
    if type(x) is not Tensor:
        return None
    ham, dtype = parts.ham, _compute_dtype(x, parts.weights.lower)
    if dtype not in DTYPES or parts.weights.lower.dtype not in DTYPES or _is_traced():
        return None
    if x.get_device() != parts.weights.lower.get_device():  # torch raises; a kernel would read invalid memory
        return None
    is_one_step = ham.grad == one_step
    if torch.is_grad_enabled() and not is_one_step:
        return None
    spec = select_spec(requested, x, ham.ham, ham.grad, one_step=is_one_step)
    if spec is None:
        return None
    return BlockPlan(spec.kernel, spec.options, ham.steps if ham.training else ham.eval_steps, dtype)


def _is_unhooked(module: nn.Module) -> bool:
    """Whether the module may be skipped: it has no hook and no replaced forward."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _are_contiguous(*vectors: Tensor | None) -> bool:
    """Whether the kernels, which take no strides of vectors, can read all of them."""
    return all(vector is None or vector.is_contiguous() for vector in vectors)


def _is_traced() -> bool:
    """Whether the calls of the modules are recorded, by a tracer, an exporter or a global hook."""
    if torch.compiler.is_compiling():
        return is_exporting()
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or is_exporting() or any(GLOBAL_HOOKS)


def _compute_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of the products, as in `Bread`: float32 instead of float16, whose range is too small."""
    cast = autocast_dtype(x.device.type)
    return torch.float32 if torch.float16 in (cast, weight.dtype) else cast or weight.dtype


# -- the three variants ------------------------------------------------------------------------------------------------


def run_whole(layer: Hamburger, block: FusedBlock, z: Tensor) -> Tensor | None:
    """The layer with its norm, skip and ReLU; None where these have to follow as modules.

    z: b c and one to three further axes   ->   the same
    """
    if torch.compiler.is_compiling():
        return None
    norm = block.parts.norm
    variant = evaluate if can_evaluate(norm) else train if can_train(norm, z) else None
    return None if variant is None else variant(block, z, rectify=layer.version != "paper")


def context(block: FusedBlock, x: Tensor) -> Tensor:
    """The layer up to its upper bread.   x: b c n   ->   b c n"""
    from hamburger.kernels import block as kernels

    parts, plan = block
    u, bases = kernels.block_context(x, parts.weights, _initial_bases(parts, x)[0], plan)
    _update_dictionary(parts, bases)
    return u


def can_evaluate(norm: nn.Module) -> bool:
    """Whether norm, skip and ReLU can be fused in evaluation: no graph, and a norm that is a scale and a shift."""
    if torch.is_grad_enabled() or not _is_unhooked(norm):
        return False
    if type(norm) is nn.Identity:
        return True
    if norm.training or type(norm) not in BATCH_NORMS:
        return False
    mean, var, weight, bias, _ = _batch_norm_parameters(norm)
    return mean is not None and (weight is None) == (bias is None) and _are_contiguous(mean, var, weight, bias)


def evaluate(block: FusedBlock, z: Tensor, *, rectify: bool) -> Tensor:
    """The whole layer without a graph."""
    from hamburger.kernels import block as kernels

    parts, plan = block
    x = z.flatten(2)  # b c n
    initial = _initial_bases(parts, x)[0]
    norm = None if isinstance(parts.norm, nn.Identity) else _batch_norm_parameters(parts.norm)
    y, bases = kernels.evaluate_block(x, parts.weights, initial, plan, norm, rectify=rectify)
    _update_dictionary(parts, bases)
    return y.view(z.shape)


def can_train(norm: nn.Module, x: Tensor) -> bool:
    """Whether norm, skip and ReLU can be fused in training: batch norm of this process alone, with a momentum."""
    if not norm.training or not torch.is_grad_enabled() or not _is_unhooked(norm):
        return False
    if not isinstance(norm, _BatchNorm) or type(norm) not in BATCH_NORMS or x.dtype == torch.float16:
        return False
    if type(norm) not in LOCAL_BATCH_NORMS and distributed.world_size() > 1:
        return False
    has_variance = x.numel() > x.shape[1]  # more than one value per channel
    if not (has_variance and norm.affine and norm.track_running_stats and norm.momentum is not None):
        return False
    return _are_contiguous(*_batch_norm_parameters(norm)[:4])


def train(block: FusedBlock, x: Tensor, *, rectify: bool) -> Tensor:
    """The whole layer in training."""
    from hamburger.kernels import block_training

    parts, plan = block
    norm, (initial, unit) = parts.norm, _initial_bases(parts, x, raw=True)
    with norms.keep_buffers(norm):
        tracked = norm._buffers["num_batches_tracked"]
        state = BatchNormState(_batch_norm_parameters(norm), norm.momentum, tracked)  # type: ignore[arg-type]
        y, bases = block_training.train_block(x, parts.weights, initial, plan, state, rectify=rectify, unit=unit)
    _update_dictionary(parts, bases)
    return y


def _batch_norm_parameters(norm: nn.Module) -> NormParameters:
    buffers: Any = norm._buffers
    parameters, eps = norm._parameters, float(norm.eps)  # type: ignore[arg-type]
    return NormParameters(
        buffers["running_mean"], buffers["running_var"], parameters["weight"], parameters["bias"], eps
    )


def _initial_bases(parts: BlockParts, x: Tensor, *, raw: bool = False) -> tuple[Tensor, bool]:
    """The initial bases, as `HamLayer` takes or draws them, and whether their columns still have to be normalised.

    x: b c ...   ->   (b or 1) d r in float32.   `raw`: leave random bases as they are drawn, without normalising them
    """
    ham, dictionary = parts.ham, parts.dictionary
    ham.ham.check(ham.dim, x.shape[2:].numel())
    if dictionary.init == "learned":
        with torch.no_grad():
            return dictionary(x).float().contiguous(), False
    if dictionary.init == COLUMNS:  # a bread and a ReLU act on each position, so on these few positions alone
        with torch.no_grad():
            x = x.flatten(2)
            z = parts.lower(x.index_select(2, spread_positions(x.shape[2], ham.ham.rank, x.device)))
            return ham.ham.bases_from_columns(z.relu() if ham.ham.nonnegative else z).float().contiguous(), False
    if dictionary.init not in ("random", "carry") or not dictionary.training:
        # usually no copy: one dictionary for all samples
        return dictionary.stored(x.flatten(2)).float().contiguous(), False
    bases = dictionary.bases
    draw = ham.ham.sample if raw else ham.ham.draw
    like = bases if bases.dtype == torch.float32 else bases.new_empty(0, dtype=torch.float32)
    bases = distributed.draw_for_global_batch(lambda rows: draw(rows, ham.dim, like=like), x.shape[0])
    return bases.contiguous(), raw


def _update_dictionary(parts: BlockParts, bases: Tensor) -> None:
    if parts.dictionary.init == "online":
        parts.dictionary.update(bases)
