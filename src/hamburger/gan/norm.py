"""Class-conditional batch norm (Dumoulin et al., 2017; Miyato & Koyama, 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.layers.norm import BatchNorm2d


class ConditionalBatchNorm2d(nn.Module):
    """Batch norm with a gain and a bias of its own for every class.   b c h w, b   ->   b c h w

    Statistics are those of the batch, all classes together. `eps` and `momentum` in torch's sense: momentum 0.001 is
    what others write as a decay of 0.999.
    """

    def __init__(self, channels: int, *, num_classes: int, eps: float = 1e-3, momentum: float = 1e-3) -> None:
        super().__init__()
        self.norm = BatchNorm2d(channels, eps=eps, momentum=momentum, affine=False)
        self.gain = nn.Parameter(torch.ones(num_classes, channels))
        self.bias = nn.Parameter(torch.zeros(num_classes, channels))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        gain, bias = (F.embedding(y, table)[:, :, None, None].to(x.dtype) for table in (self.gain, self.bias))
        return torch.addcmul(bias, self.norm(x), gain)

    def extra_repr(self) -> str:
        classes, channels = self.gain.shape
        return f"{channels}, num_classes={classes}"
