"""Adaptive pyramid context: APCNet (He, Deng, Zhou, Wang, Qiao, CVPR 2019).

Checked against an independent implementation. Whether the paper itself applies a sigmoid to the affinity could not be
checked. CBR: a 1 x 1 convolution, batch norm, ReLU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_counts, check_map, contexts, conv, conv_norm_relu
from hamburger.contexts.psp import Join, build_bottleneck, join_branches, pool_to_grid
from hamburger.errors import check_choice, check_count, check_flag

GlobalInfo = Literal["input", "reduced"]


class AdaptiveContext(nn.Module):
    """One scale: every position mixes the s² cells of a pooled grid.   x: b c h w   mean: b c 1 1   ->   b d h w"""

    def __init__(
        self, channels: int, width: int, scale: int, *, global_info: GlobalInfo, fusion: bool, bias: bool
    ) -> None:
        super().__init__()
        self.scale, self.global_info = scale, global_info
        self.reduce = conv_norm_relu(channels, width, bias=bias)
        self.cells = conv_norm_relu(channels, width, bias=bias)
        self.whole = conv_norm_relu(channels if global_info == "input" else width, width, bias=bias)
        self.affinity = conv(width, scale * scale, bias=True)
        self.residual = conv_norm_relu(width, width, bias=bias)
        self.fusion = conv_norm_relu(width, width, bias=bias) if fusion else nn.Identity()

    def forward(self, x: Tensor, mean: Tensor) -> Tensor:
        u = self.reduce(x)
        cells = self.cells(mean if self.scale == 1 else pool_to_grid(x, self.scale)).flatten(2)  # b d s²
        whole = self.whole(mean if self.global_info == "input" else u.mean((2, 3), keepdim=True))
        weights = torch.sigmoid(self.affinity(u + whole)).flatten(2)  # b s² n, not normalised
        z = (cells @ weights).unflatten(2, x.shape[2:])
        return self.fusion(torch.relu(self.residual(z) + u))


@contexts.register("apc")
class APC(nn.Module):
    """Pooled pyramids whose cells each position weights itself.   b c h w   ->   b c h w

        u = CBR(x)                                       b d n, d = `width`
        y = CBR(grid(x, s))                              b d s²: means of x over an s x s grid
        g = CBR(mean(x))                                 b d 1
        a = sigmoid(W (u + g))                           b s² n: how much position i takes of cell j
        o_s = CBR(relu(CBR(y a) + u))                    b d n, one for each s of `scales`
        out = x + mean of the o, folded to c channels

    The paper concatenates x and the o_s and reduces them by a 3 x 3 convolution of its segmentation head, which Table 3
    leaves out. To keep the shape and the parameters counted there, this layer splits the concatenated o_s into pieces
    of c channels and adds their mean to x: at d = c/2, ((o_1, o_2) + (o_3, o_6)) / 2. This is the library's choice.

    - `global_info`: where g comes from. "input", mean(x), is the wiring with the cost printed in Table 3; "reduced",
      mean(u) with a square convolution, as in that implementation.
    - `bias`: of the convolutions before batch norm. It changes only the number of parameters: with "input" it gives
      the 2.03M of Table 3 (2,125,362); `global_info="reduced", bias=False` is the other implementation (1,858,098).
    - `fusion`: the last CBR of each scale.
    - `join`: "residual" as above, or "bottleneck": CBR 3 x 3 of (x, o_1, ...) to c channels, as in the paper's head.
    """

    def __init__(
        self,
        channels: int,
        *,
        width: int | None = None,
        scales: Sequence[int] = (1, 2, 3, 6),
        global_info: GlobalInfo = "input",
        fusion: bool = True,
        bias: bool = True,
        join: Join = "residual",
    ) -> None:
        super().__init__()
        check_count("APC", "channels", channels, least=2)
        width = channels // 2 if width is None else width
        check_count("APC", "width", width, least=1)
        check_choice("APC", "global_info", global_info, get_args(GlobalInfo))
        check_counts("APC", "scales", scales, example=(1, 2, 3, 6))
        check_flag("APC", "fusion", fusion)
        check_flag("APC", "bias", bias)
        self.channels = channels
        self.scales = nn.ModuleList(
            AdaptiveContext(channels, width, scale, global_info=global_info, fusion=fusion, bias=bias)
            for scale in scales
        )
        self.bottleneck = build_bottleneck("APC", join, channels, len(scales), width)

    def forward(self, x: Tensor) -> Tensor:
        check_map("APC", x, self.channels)
        mean = x.mean((2, 3), keepdim=True)  # computed once, since it reads all of x and every scale uses it
        return join_branches(x, [scale(x, mean) for scale in self.scales], self.bottleneck)
