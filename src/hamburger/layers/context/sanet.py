"""The squeeze-and-attention unit of SANet (Zhong et al., CVPR 2020).

Rebuilt from the paper's formula and a community block: details are uncertain, among them how the attention map is
brought back to full size, and whether it is squashed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import check_choice, check_count
from hamburger.layers.context.base import contexts
from hamburger.layers.context.blocks import conv_norm_relu, resize

UPSAMPLE = ("bilinear", "nearest")


@contexts.register("sanet")
class SANet(nn.Module):
    """Attention at half size, a map and not a vector: "not fully squeezed".   b c h w   ->   b c h w

        main = CBR3(CBR3(x))
        attn = up(CBR3(CBR3(average-pool 2 of x)))          CBR3: 3x3 convolution with bias, batch norm, ReLU
        out  = attn * main + attn

    - `squash`: a sigmoid on attn, which one port has.
    - `upsample`: "bilinear" or "nearest". Odd sizes are rounded up by the pooling and come back exactly.
    """

    def __init__(self, channels: int, *, squash: bool = False, upsample: str = "bilinear") -> None:
        super().__init__()
        check_count("SANet", "channels", channels, least=1)
        check_choice("SANet", "upsample", upsample, UPSAMPLE)
        self.squash, self.upsample = squash, upsample
        self.main, self.attention = (
            nn.Sequential(*(conv_norm_relu(channels, channels, 3, bias=True) for _ in range(2))) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        # windows that reach over the edge average what is inside
        attention = self.attention(F.avg_pool2d(x, 2, ceil_mode=True))
        attention = resize(attention, x) if self.upsample == "bilinear" else F.interpolate(attention, x.shape[2:])
        if self.squash:
            attention = torch.sigmoid(attention)
        return attention * self.main(x) + attention

    def extra_repr(self) -> str:
        return f"squash={self.squash}, upsample={self.upsample}"
