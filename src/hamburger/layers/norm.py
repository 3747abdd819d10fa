"""Batch norm and dropout whose results do not depend on how a batch is split over processes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger import distributed
from hamburger.distributed import joined_draw
from hamburger.errors import InputError, OptionError, check_positive
from hamburger.precision import widen


def one_value(norm: _BatchNorm, x: Tensor) -> Tensor | None:
    """The answer where training meets a single value per channel; None everywhere else."""
    if norm.training and x.numel() == x.shape[1]:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
    return None


class BatchNorm1d(nn.BatchNorm1d):
    """On b c n."""

    def forward(self, x: Tensor) -> Tensor:
        y = one_value(self, x)
        return super().forward(x) if y is None else y


class BatchNorm2d(nn.BatchNorm2d):
    """On b c h w."""

    def forward(self, x: Tensor) -> Tensor:
        y = one_value(self, x)
        return super().forward(x) if y is None else y


PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNorm1d, BatchNorm2d)


class SyncBatchNorm(_BatchNorm):
    """On b c ..., any number of positions, different in each process if need be.

    On CUDA it is torch's. torch has none for other devices; there the sums cross processes as `distributed.summed`,
    so input and weights receive the gradient of all processes' losses added up. Alone it is plain batch norm.
    """

    # torch's forward is borrowed, not inherited: DDP refuses every heir of torch's class that is not on CUDA
    process_group = None
    _check_input_dim = nn.SyncBatchNorm._check_input_dim
    _check_non_zero_input_channels = nn.SyncBatchNorm._check_non_zero_input_channels

    def forward(self, input: Tensor) -> Tensor:
        alone = distributed.world() == 1
        y = one_value(self, input) if alone else None
        if y is not None:
            return y
        if alone or not self.training or input.is_cuda:
            return nn.SyncBatchNorm.forward(self, input)  # type: ignore[arg-type]
        return self._joined(input)

    def _joined(self, x: Tensor) -> Tensor:
        wide = widen(x).transpose(0, 1).flatten(1)  # c n
        c = wide.shape[0]
        sums = torch.cat([wide.sum(1), wide.new_full((1,), wide.shape[1])])
        sums = distributed.summed(sums)
        count = sums[c].detach()
        mean = sums[:c] / count
        centred = wide - mean[:, None]
        # a second round, for E[x^2] - E[x]^2 loses every digit of a small variance
        var = distributed.summed(centred.square().sum(1)) / count
        self._follow(mean.detach(), var.detach(), count)
        y = centred * (var + self.eps).rsqrt()[:, None]
        if self.affine:
            y = y * self.weight[:, None] + self.bias[:, None]
        return y.unflatten(1, (x.shape[0], *x.shape[2:])).transpose(0, 1).to(x.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = var * (count / (count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class SyncBatchNormAct(SyncBatchNorm):
    """With the dropout and activation that some encoders' norms carry."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self.act(self.drop(super().forward(input)))
        return y


def convert_sync(net: nn.Module) -> nn.Module:
    """Every batch norm of the network replaced by one over all processes; parameters and buffers are the same objects.

    Returns the network (a new module only where it is itself a batch norm). State dicts keep their names.
    """
    if isinstance(net, SyncBatchNorm):
        return net
    if isinstance(net, _BatchNorm):
        return _synced(net)
    for name, child in net.named_children():
        new = convert_sync(child)
        if new is not child:
            setattr(net, name, new)
    return net


def _synced(norm: _BatchNorm) -> SyncBatchNorm:
    with_act = isinstance(getattr(norm, "act", None), nn.Module) and isinstance(getattr(norm, "drop", None), nn.Module)
    if type(norm) not in PLAIN and not with_act:
        raise InputError(
            f"convert_sync: {type(norm).__name__} is a batch norm of its own kind, and what it adds would be lost; "
            f"train with sync_bn=False, or build the network with torch.nn.BatchNorm2d"
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
    """How fast every batch norm's running statistics follow the batches, in torch's sense: 0.1 is torch's default."""
    check_positive("set_bn_momentum", "momentum", momentum, zero=True, most=1.0)
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum


# ----------------------------------------------------------------------------------------------------------------------
# Dropout of whole channels that does not depend on how a batch is spread over processes.


class Dropout2d(nn.Module):
    """In training each channel of each sample is zero with probability p, else x / (1 - p).   b c h w   ->   b c h w

    Processes that hold parts of a batch, and the same state of torch's generator, drop together what one process with
    the joined batch drops.
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
        drawn = joined_draw(lambda b: torch.rand(b, c, 1, 1, device=x.device), x.shape[0])
        return x * ((drawn < keep).to(x.dtype) / keep)

    def extra_repr(self) -> str:
        return f"p={self.p}"
