"""Dropout of whole channels that does not depend on how a batch is spread over processes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hamburger.distributed import joined_draw
from hamburger.errors import OptionError


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
