"""Average pooling, the token mixer of PoolFormer (Yu, Luo, Zhou, Si, Zhou, Wang, Feng and Yan, "MetaFormer is actually
what you need for vision", CVPR 2022).

Checked against the paper's Algorithm 1: stride 1, positions outside the map are not counted, the input is subtracted.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import check_map, check_sizes, contexts
from hamburger.errors import OptionError


@contexts.register("pooling")
class AveragePooling(nn.Module):
    """Average over a window, without parameters.   b c h w   ->   b c h w

        out = x + (AvgPool(x) - x)

    The difference in brackets is what PoolFormer adds to its residual stream; this layer alone returns the average. It
    is local: the baseline of a network in which hams or attention mix positions.

    - `window`: its side, an odd number.
    """

    def __init__(self, channels: int, *, window: int = 3) -> None:
        super().__init__()
        check_sizes("pooling", channels=channels, window=window)
        if window % 2 == 0:
            raise OptionError(f"pooling: window must be odd, to be centred on a position (got {window})")
        self.channels, self.window = channels, window

    def forward(self, x: Tensor) -> Tensor:
        return x + self.context(x)

    def context(self, x: Tensor) -> Tensor:
        """Apply the layer without its skip.   b c h w   ->   b c h w"""
        check_map("pooling", x, self.channels)
        return F.avg_pool2d(x, self.window, 1, self.window // 2, count_include_pad=False) - x
