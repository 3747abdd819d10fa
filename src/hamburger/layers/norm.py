"""The norm of a burger; batch norm and dropout whose results do not depend on how the batch is split over ranks.

Gradient checkpointing leaves the running statistics of these norms as they are without it; torch's own norms update
theirs once more in the recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger import distributed
from hamburger.distributed import draw_for_global_batch
from hamburger.errors import InputError, OptionError, check_choice, check_positive
from hamburger.tensors import HALF_MAX, is_exporting, is_recomputing, widen

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Norm = Literal["batch", "group", "none"]
NORMS = get_args(Norm)
GROUPS = 32


def normalise_single_value(norm: _BatchNorm, x: Tensor) -> Tensor | None:
    """Return the output for training on a single value per channel, which torch refuses; None in all other cases."""
    if norm.training and x.numel() == x.shape[1]:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
    return None


def run_in_dtype_of(x: Tensor, module: nn.Module) -> Tensor:
    """Apply a norm to x. One cast to float16 runs in float32 where x is float32; its running statistics saturate."""
    tensors = [*module.parameters(), *module.buffers()]
    if not tensors or tensors[0].dtype != torch.float16 or x.dtype == torch.float16:
        return module(x)
    owned = chain(module.named_parameters(), module.named_buffers())
    wide = {key: tensor.float() if tensor.is_floating_point() else tensor.clone() for key, tensor in owned}
    y: Tensor = torch.func.functional_call(module, wide, (x,))
    with torch.no_grad():
        for key, buffer in module.named_buffers():
            buffer.copy_(wide[key].clamp(-HALF_MAX, HALF_MAX) if buffer.is_floating_point() else wide[key])
    return y


def keep_buffers(module: nn.Module) -> AbstractContextManager[None]:
    """Context manager: in a recomputation, let the module update copies of its own buffers, which are then dropped."""
    return _update_copies(module) if is_recomputing() else nullcontext()


@contextmanager
def _update_copies(module: nn.Module) -> Iterator[None]:
    # copies, not a second write: autograd would report the buffers as modified in place
    buffers = dict(module._buffers)
    module._buffers.update({name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()})
    try:
        yield
    finally:
        module._buffers.update(buffers)


# in a CUDA graph it would always do what it did while the graph was recorded; torch before 2.8 has no tag to say
# so, and 2.11 takes only a list of tags
_TAGS: dict[str, Any] = {"tags": [torch.Tag.cudagraph_unsafe]} if hasattr(torch.Tag, "cudagraph_unsafe") else {}


@torch.library.custom_op("hamburger::update_buffers", mutates_args=("buffers",), **_TAGS)
def update_buffers(buffers: Sequence[Tensor], updated: Sequence[Tensor]) -> None:
    """Copy the values, except in a recomputation: a compiled layer knows only when it runs that it is one."""
    if not is_recomputing():
        for buffer, value in zip(buffers, updated, strict=True):
            buffer.copy_(value)


def run_norm(norm: _BatchNorm, forward: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Return `forward(norm, x)`; a recomputation leaves the buffers as they are."""
    updates = norm.training and norm.track_running_stats and norm.momentum is not None
    if not updates or not torch.compiler.is_compiling() or is_exporting():
        with keep_buffers(norm):
            return forward(norm, x)
    norm._check_input_dim(x)
    buffers: Any = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    mean, var, tracked = (buffer.clone() for buffer in buffers)  # as in `_update_copies`
    y = F.batch_norm(x, mean, var, norm.weight, norm.bias, True, norm.momentum or 0.0, norm.eps)
    update_buffers(buffers, [mean, var, tracked + 1])
    return y


class BatchNorm1d(nn.BatchNorm1d):
    """Batch norm on b c n that accepts a single value per channel in training."""

    def forward(self, x: Tensor) -> Tensor:
        y = normalise_single_value(self, x)
        return run_norm(self, nn.BatchNorm1d.forward, x) if y is None else y


class BatchNorm2d(nn.BatchNorm2d):
    """Batch norm on b c h w that accepts a single value per channel in training."""

    def forward(self, x: Tensor) -> Tensor:
        y = normalise_single_value(self, x)
        return run_norm(self, nn.BatchNorm2d.forward, x) if y is None else y


def make_norm(norm: Norm | Callable[[int], nn.Module], channels: int, momentum: float) -> nn.Module:
    """Return a norm for b c n: "batch" (the paper's), "group" (LightHam's), "none", or a function of the channels."""
    if callable(norm) and not isinstance(norm, nn.Module):
        module = norm(channels)
        if not isinstance(module, nn.Module) or isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d)):
            raise OptionError(
                f"Hamburger: norm must return a module for maps (b, c, n), such as torch.nn.BatchNorm1d, got {module}"
            )
        return module
    if isinstance(norm, nn.Module):
        raise OptionError(f"Hamburger: norm must be a function of the channels, got {norm}; pass its class")
    check_choice("Hamburger", "norm", norm, NORMS)
    if norm == "batch":
        return BatchNorm1d(channels, momentum=momentum)
    if norm == "group":
        if channels % GROUPS:
            raise OptionError(
                f"Hamburger: norm='group' has {GROUPS} groups, so channels must be a multiple of {GROUPS} (got "
                f"{channels}); pass norm=lambda c: torch.nn.GroupNorm(groups, c) for another number of groups"
            )
        return nn.GroupNorm(GROUPS, channels)
    return nn.Identity()


CONVERTIBLE_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNorm1d, BatchNorm2d)


class SyncBatchNorm(_BatchNorm):
    """Batch norm on b c ... over all ranks, which may hold different numbers of positions.

    On CUDA it is torch's. torch has none for other devices; there the sums over ranks are differentiable, so input and
    weights get the gradient of the summed losses of all ranks. With one rank it is plain batch norm. `mesh` limits it
    to the processes of a one-dimensional DeviceMesh.
    """

    mesh: DeviceMesh | None = None  # unlike a process group, a mesh can be copied

    # torch's forward is called, not inherited: DDP refuses subclasses of torch's class that are not on CUDA
    _check_input_dim = nn.SyncBatchNorm._check_input_dim
    _check_non_zero_input_channels = nn.SyncBatchNorm._check_non_zero_input_channels

    @property
    def process_group(self) -> Any:
        return None if self.mesh is None else self.mesh.get_group()

    def forward(self, input: Tensor) -> Tensor:
        if distributed.world_size(self.process_group) == 1:
            y = normalise_single_value(self, input)
            return run_norm(self, nn.SyncBatchNorm.forward, input) if y is None else y
        with keep_buffers(self):
            if not self.training or input.is_cuda:
                return nn.SyncBatchNorm.forward(self, input)  # type: ignore[arg-type]
            return self._normalise_over_ranks(input)

    def _normalise_over_ranks(self, x: Tensor) -> Tensor:
        wide = widen(x).transpose(0, 1).flatten(1)  # c n
        c = wide.shape[0]
        sums = torch.cat([wide.sum(1), wide.new_full((1,), wide.shape[1])])
        sums = distributed.sum_over_ranks_with_gradient(sums, self.process_group)
        count = sums[c].detach()
        mean = sums[:c] / count
        centred = wide - mean[:, None]
        # a second reduction, since E[x^2] - E[x]^2 loses all digits of a small variance
        var = distributed.sum_over_ranks_with_gradient(centred.square().sum(1), self.process_group) / count
        self._update_running_statistics(mean.detach(), var.detach(), count)
        y = centred * (var + self.eps).rsqrt()[:, None]
        if self.affine:
            y = y * self.weight[:, None] + self.bias[:, None]
        return y.unflatten(1, (x.shape[0], *x.shape[2:])).transpose(0, 1).to(x.dtype)

    @torch.no_grad()
    def _update_running_statistics(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        unbiased = var * (count / (count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class SyncBatchNormAct(SyncBatchNorm):
    """`SyncBatchNorm` followed by the dropout and activation that timm's norm layers contain."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self.act(self.drop(super().forward(input)))
        return y


def convert_sync(net: nn.Module) -> nn.Module:
    """Replace every batch norm of the network by one over all ranks; parameters and buffers stay the same objects.

    Returns the network, or a new module if it is itself a batch norm. State dicts keep their names.
    """
    if isinstance(net, SyncBatchNorm):
        net.mesh = None
        return net
    if isinstance(net, _BatchNorm):
        return _convert_norm(net)
    for name, child in net.named_children():
        new = convert_sync(child)
        if new is not child:
            setattr(net, name, new)
    return net


def _convert_norm(norm: _BatchNorm) -> SyncBatchNorm:
    with_act = isinstance(getattr(norm, "act", None), nn.Module) and isinstance(getattr(norm, "drop", None), nn.Module)
    if type(norm) not in CONVERTIBLE_NORMS and not with_act:
        raise InputError(
            f"convert_sync: {type(norm).__name__} is a custom batch norm, and what it adds would be lost; train with "
            f"sync_bn=False, or build the network with torch.nn.BatchNorm2d"
        )
    kind = SyncBatchNormAct if with_act else SyncBatchNorm
    new = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    new.weight, new.bias = norm.weight, norm.bias
    new.running_mean, new.running_var = norm.running_mean, norm.running_var
    new.num_batches_tracked = norm.num_batches_tracked
    if isinstance(new, SyncBatchNormAct):
        new.drop, new.act = norm.drop, norm.act  # type: ignore[assignment]
    return new.train(norm.training)


def set_bn_momentum(net: nn.Module, momentum: float) -> None:
    """Set the momentum of every batch norm of the network, in torch's sense (torch's default is 0.1)."""
    check_positive("set_bn_momentum", "momentum", momentum, zero=True, most=1.0)
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum


class Dropout2d(nn.Module):
    """In training each channel of each sample is zero with probability p, else x / (1 - p).   b c h w   ->   b c h w

    Ranks with the same state of torch's generator drop the channels that one process would drop for the global batch.
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p < 1:
            raise OptionError(f"Dropout2d: p must be at least 0 and below 1, got {p!r}")
        self.p = float(p)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        c, keep = x.shape[1], 1 - self.p
        # drawn in float32, so that the precision of x does not change which channels are dropped
        drawn = draw_for_global_batch(lambda b: torch.rand(b, c, 1, 1, device=x.device), x.shape[0])
        return x * ((drawn < keep).to(x.dtype) / keep)

    def extra_repr(self) -> str:
        return f"p={self.p}"
