"""The squeeze-and-attention unit of SANet (Zhong et al., CVPR 2020).

Rebuilt from the paper's formula and a community block: details are uncertain, among them how the attention map is
upsampled, and whether a sigmoid follows.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import check_map, contexts, conv_norm_relu, resize
from hamburger.errors import check_choice, check_count, check_flag

Upsampling = Literal["bilinear", "nearest"]


class SqueezeAttention(nn.Module):
    """The unit with any output width.   b a h w   ->   b c h w

    main = CBR3(CBR3(x))
    attn = up(CBR3(CBR3(average-pool 2 of x)))          CBR3: 3x3 convolution with bias, batch norm, ReLU
    out  = attn * main + attn
    """

    def __init__(self, in_channels: int, out_channels: int, *, squash: bool, upsample: Upsampling) -> None:
        super().__init__()
        check_count("SANet", "width", out_channels, least=1)
        check_choice("SANet", "upsample", upsample, get_args(Upsampling))
        check_flag("SANet", "squash", squash)
        self.channels = in_channels
        self.squash, self.upsample = squash, upsample
        self.main, self.attention = (
            nn.Sequential(
                conv_norm_relu(in_channels, out_channels, 3, bias=True),
                conv_norm_relu(out_channels, out_channels, 3, bias=True),
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        check_map("SANet", x, self.channels)
        # windows that cross the border average the pixels inside
        attention = self.attention(F.avg_pool2d(x, 2, ceil_mode=True))
        attention = resize(attention, x) if self.upsample == "bilinear" else F.interpolate(attention, x.shape[2:])
        if self.squash:
            attention = torch.sigmoid(attention)
        return attention * self.main(x) + attention


@contexts.register("sanet")
class SANet(SqueezeAttention):
    """Attention map at half resolution, "not fully squeezed" to a vector.   b c h w   ->   b c h w

    - `squash`: apply a sigmoid to attn, as one implementation does.
    - `upsample`: "bilinear" or "nearest". The pooling rounds odd sizes up; the output has the size of the input.
    """

    def __init__(self, channels: int, *, squash: bool = False, upsample: Upsampling = "bilinear") -> None:
        check_count("SANet", "channels", channels, least=1)
        super().__init__(channels, channels, squash=squash, upsample=upsample)
