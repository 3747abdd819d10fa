"""Dynamic multi-scale filters: DMNet (He, Deng, Qiao, ICCV 2019).

Checked against an independent implementation. CBR: a 1 x 1 convolution, batch norm, ReLU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import (
    check_counts,
    check_map,
    check_sizes,
    contexts,
    conv,
    conv_norm_relu,
)
from hamburger.contexts.psp import Join, build_bottleneck, join_branches, pool_to_grid
from hamburger.errors import check_flag
from hamburger.layers.norm import BatchNorm2d
from hamburger.tensors import is_exporting


class DynamicFilter(nn.Module):
    """One filter size: the map is filtered with itself, pooled to k x k.   b c h w   ->   b d h w"""

    def __init__(self, channels: int, width: int, size: int, *, fusion: bool) -> None:
        super().__init__()
        self.size = size
        self.kernel = conv(channels, width, bias=True)
        self.reduce = conv_norm_relu(channels, width)
        self.norm = BatchNorm2d(width)
        self.fusion = conv_norm_relu(width, width) if fusion else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel(pool_to_grid(x, self.size))  # b d k k
        return self.fusion(torch.relu(self.norm(filter_depthwise(self.reduce(x), kernel))))


def filter_depthwise(u: Tensor, kernel: Tensor) -> Tensor:
    """Filter every channel of every image with its own kernel, zero-padded.   b d h w, b d k k   ->   b d h w"""
    size = kernel.shape[-1]
    before, after = size // 2, (size - 1) // 2  # an even kernel extends further to the left
    if is_exporting():  # groups would fix the batch size in an exported graph, so sum one tap at a time
        padded, (h, w) = F.pad(u, (before, after, before, after)), u.shape[2:]
        taps = [
            padded[:, :, i : i + h, j : j + w] * kernel[:, :, i : i + 1, j : j + 1]
            for i in range(size)
            for j in range(size)
        ]
        return torch.stack(taps).sum(0)
    images = u.flatten(0, 1)  # one image of b d channels: a grouped convolution has one kernel per group
    if before != after:
        images = F.pad(images, (before, after, before, after))
    y = F.conv2d(
        images[None],
        kernel.flatten(0, 1)[:, None],
        padding=before if before == after else 0,
        groups=images.shape[0],
    )
    return y[0].unflatten(0, u.shape[:2])


@contexts.register("dm")
class DM(nn.Module):
    """Depthwise filters computed from the map that they filter.   b c h w   ->   b c h w

        g = W grid(x, k) + bias                          b d k k, d = `width`: one kernel per image and channel
        u = CBR(x)                                       b d h w
        o_k = CBR(relu(BN(g ∗ u)))                       b d h w, for each k of `sizes`; g is not normalised
        out = x + mean of the o, folded to c channels

    The paper's 3 x 3 convolution of x and all o_k belongs to its head and is not in Table 3. As in `apc`, the mean of
    the o_k, in pieces of c channels, is added to x instead.

    - `fusion`: the last CBR of each size, which Table 3 has; optional in that implementation.
    - `join`: "residual" as above, or "bottleneck": CBR 3 x 3 of (x, o_1, ...) to c channels, as in the paper's head.
    """

    def __init__(
        self,
        channels: int,
        *,
        width: int | None = None,
        sizes: Sequence[int] = (1, 3, 5, 7),
        fusion: bool = True,
        join: Join = "residual",
    ) -> None:
        super().__init__()
        width = channels if width is None else width
        check_sizes("DM", channels=channels, width=width)
        check_counts("DM", "sizes", sizes, example=(1, 3, 5, 7))
        check_flag("DM", "fusion", fusion)
        self.channels = channels
        self.filters = nn.ModuleList(DynamicFilter(channels, width, size, fusion=fusion) for size in sizes)
        self.bottleneck = build_bottleneck("DM", join, channels, len(sizes), width)

    def forward(self, x: Tensor) -> Tensor:
        check_map("DM", x, self.channels)
        return join_branches(x, [branch(x) for branch in self.filters], self.bottleneck)
