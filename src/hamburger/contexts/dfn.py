"""Parts of the discriminative feature network, DFN (Yu, Wang, Peng, Gao, Yu and Sang, CVPR 2018).

The two blocks were checked against the authors' code. The network chains them over the stages of a backbone; the unit
here is one link of that chain, the first, on a single map.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_map, check_sizes, contexts, conv, conv_norm_relu
from hamburger.errors import OptionError


class RRB(nn.Module):
    """Refinement residual block.   b a h w   ->   b c h w

        t = W_1 x          1x1, without a norm
        out = ReLU(t + conv3(ReLU(BN(conv3(t)))))

    `relu=False` leaves out the last ReLU, as in front of a classifier.
    """

    def __init__(self, in_channels: int, out_channels: int, *, relu: bool = True) -> None:
        super().__init__()
        check_sizes("RRB", in_channels=in_channels, out_channels=out_channels)
        self.project = conv(in_channels, out_channels, bias=False)
        self.refine = nn.Sequential(
            conv_norm_relu(out_channels, out_channels, 3), conv(out_channels, out_channels, 3, bias=False)
        )
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        t = self.project(x)
        y = t + self.refine(t)
        return torch.relu(y) if self.relu else y


class CAB(nn.Module):
    """Channel attention block: the coarse map weights the channels of the fine one.   b c h w   ->   b c h w

        w = sigmoid(FC(ReLU(FC(mean_pixels([low; high])))))          2c -> c / reduction -> c
        out = w * low + high

    `high` may be b c 1 1, a constant map.
    """

    def __init__(self, channels: int, *, reduction: int = 1) -> None:
        super().__init__()
        check_sizes("CAB", channels=channels, reduction=reduction)
        if channels % reduction:
            raise OptionError(f"CAB: reduction {reduction} does not divide the {channels} channels; choose a divisor")
        hidden = channels // reduction
        self.weigh = nn.Sequential(
            nn.Linear(2 * channels, hidden), nn.ReLU(), nn.Linear(hidden, channels), nn.Sigmoid()
        )

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        pooled = torch.cat([low.mean(dim=(2, 3)), high.mean(dim=(2, 3))], dim=1)
        return self.weigh(pooled)[:, :, None, None] * low + high


@contexts.register("dfn")
class DFN(nn.Module):
    """Refine, weight channels by the global average, refine.   b c h w   ->   b c h w

        low = RRB(x);   high = ReLU(BN(W mean_pixels(x)));   out = RRB(CAB(low, high))

    - `reduction`: of the width inside the channel attention; the authors have 1.
    """

    def __init__(self, channels: int, *, reduction: int = 1) -> None:
        super().__init__()
        check_sizes("DFN", channels=channels)
        self.channels = channels
        self.before = RRB(channels, channels)
        self.context = conv_norm_relu(channels, channels)
        self.attention = CAB(channels, reduction=reduction)
        self.after = RRB(channels, channels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        check_map("DFN", x, self.channels)
        high = self.context(x.mean(dim=(2, 3), keepdim=True))
        return self.after(self.attention(self.before(x), high))
