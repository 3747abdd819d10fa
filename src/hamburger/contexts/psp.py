"""Pyramid pooling: PSPNet (Zhao, Shi, Qi, Wang, Jia, CVPR 2017).

Checked against a widely used port.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_counts, check_map, contexts, conv_norm_relu, pool_to_grid, resize_from_grid
from hamburger.errors import OptionError, check_choice, check_count

Join = Literal["residual", "bottleneck"]
JOINS = get_args(Join)


@contexts.register("psp")
class PSP(nn.Module):
    """Means over several grids, resized to the map and added to it.   b c h w   ->   b c h w

        p_s = bilinear(CBR(grid(x, s)))                  b c/4 h w, for each s of `scales`; grid: means over s x s cells
        out = x + (p_1, p_2, p_3, p_6)                   c/4 channels each

    The paper concatenates x and the p_s and reduces the 2c channels by a 3 x 3 convolution of its segmentation head,
    about eighteen times the parameters of the pyramid. The p_s together have the c channels of x, so this layer adds
    them instead. This join is the library's choice; the head that follows still has its 3 x 3 convolution.

    - `join`: "residual" as above, or "bottleneck": CBR 3 x 3 of (x, p_1, ...) to c channels, as in the paper's head.
    """

    def __init__(self, channels: int, *, scales: Sequence[int] = (1, 2, 3, 6), join: Join = "residual") -> None:
        super().__init__()
        check_count("PSP", "channels", channels, least=1)
        check_choice("PSP", "join", join, JOINS)
        check_counts("PSP", "scales", scales, example=(1, 2, 3, 6))
        if channels % len(scales):
            raise OptionError(
                f"PSP: {len(scales)} scales do not divide the channels {channels}; "
                f"choose a multiple of {len(scales)}, or other scales"
            )
        self.channels = channels
        self.scales = tuple(scales)
        self.branches = nn.ModuleList(conv_norm_relu(channels, channels // len(scales)) for _ in scales)
        self.bottleneck = conv_norm_relu(2 * channels, channels, 3) if join == "bottleneck" else None

    def forward(self, x: Tensor) -> Tensor:
        check_map("PSP", x, self.channels)
        pyramid = [
            resize_from_grid(branch(pool_to_grid(x, scale)), x.shape[2:])
            for scale, branch in zip(self.scales, self.branches, strict=True)
        ]
        if self.bottleneck is not None:
            y: Tensor = self.bottleneck(torch.cat([x, *pyramid], dim=1))
            return y
        return x + torch.cat(pyramid, dim=1)

    def extra_repr(self) -> str:
        return f"scales={self.scales}"
