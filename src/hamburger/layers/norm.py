"""Batch norm that survives one value per channel: one position, a batch of one, in training.

One value has no variance; the running statistics stand in for it, and are not updated.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def _forward(norm: _BatchNorm, x: Tensor) -> Tensor | None:
    if norm.training and x.numel() == x.shape[1]:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
    return None


class BatchNorm1d(nn.BatchNorm1d):
    """On b c n."""

    def forward(self, x: Tensor) -> Tensor:
        y = _forward(self, x)
        return super().forward(x) if y is None else y


class BatchNorm2d(nn.BatchNorm2d):
    """On b c h w."""

    def forward(self, x: Tensor) -> Tensor:
        y = _forward(self, x)
        return super().forward(x) if y is None else y
