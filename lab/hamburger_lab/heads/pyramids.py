"""Three heads that concatenate the map with contexts at several scales, and merge all by one convolution.

- PSPNet (Zhao, Shi, Qi, Wang and Jia, "Pyramid scene parsing network", CVPR 2017)
- APCNet (He, Deng, Zhou, Wang and Qiao, "Adaptive pyramid context network for semantic segmentation", CVPR 2019)
- DMNet (He, Deng and Qiao, "Dynamic multi-scale filters for semantic segmentation", ICCV 2019)

All were checked against an independent implementation, which is also the source of the auxiliary loss of APCNet and
DMNet and its weight. Not verified: whether the paper of APCNet itself applies a sigmoid to the affinity.

CBRk: a k x k convolution, batch norm, ReLU; CBR is CBR1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamburger.contexts.apc import AdaptiveContext
from hamburger.contexts.common import check_counts, conv_norm_relu
from hamburger.contexts.dm import DynamicFilter
from hamburger.contexts.psp import pool_to_grid, resize_from_grid
from hamburger.errors import OptionError, check_flag
from hamburger.segmentation.heads.base import PixelClassifier, heads
from hamburger_lab.heads.base import AuxiliaryHead


@heads.register("pspnet")
class PSPNet(AuxiliaryHead):
    """Concatenate the map with its means over grids of several sizes.   [..., b c h w]   ->   logits b k h w

        p_s = bilinear(CBR(grid(x, s)))                  b c/4 h w, for each s of `scales`; grid: means over s x s cells
        logits = W dropout(CBR3((x, p_1, p_2, p_3, p_6)))             c + c -> `width` -> k
    The weight of the auxiliary loss is 0.4 in the paper and 0.2 in an independent implementation.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        scales: Sequence[int] = (1, 2, 3, 6),
        dropout: float = 0.1,
        aux_weight: float = 0.4,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        c = self.channels[-1]
        check_counts("PSPNet", "scales", scales, example=(1, 2, 3, 6))
        if len(scales) > c:
            raise OptionError(
                f"PSPNet: more scales than channels (got {len(scales)} scales, {c} channels); pass fewer scales"
            )
        self.scales, share = tuple(scales), c // len(scales)
        self.branches = nn.ModuleList(conv_norm_relu(c, share) for _ in scales)
        self.bottleneck = conv_norm_relu(c + share * len(scales), width, 3)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        pyramid = [
            resize_from_grid(branch(pool_to_grid(x, scale)), x.shape[2:])
            for scale, branch in zip(self.scales, self.branches, strict=True)
        ]
        return self.bottleneck(torch.cat([x, *pyramid], dim=1)), {}


@heads.register("apcnet")
class APCNet(AuxiliaryHead):
    """Pyramid pooling with cell weights predicted per position.   [..., b c h w]   ->   logits b k h w

        o_s = the adaptive context of an s x s grid      b d h w, d = `width`, for each s of `scales`
        logits = W dropout(CBR3((x, o_1, o_2, o_3, o_6)))             c + 4d -> d -> k

    The formula of o_s is in `hamburger.contexts.apc`. Here its global vector comes from the reduced map, as in
    that implementation. `fusion`: whether each scale ends in a CBR.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        scales: Sequence[int] = (1, 2, 3, 6),
        fusion: bool = True,
        dropout: float = 0.1,
        aux_weight: float = 0.4,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        check_counts("APCNet", "scales", scales, example=(1, 2, 3, 6))
        check_flag("APCNet", "fusion", fusion)
        c = self.channels[-1]
        self.scales = nn.ModuleList(
            AdaptiveContext(c, width, scale, global_info="reduced", fusion=fusion, bias=False) for scale in scales
        )
        self.bottleneck = conv_norm_relu(c + len(scales) * width, width, 3)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        mean = x.mean((2, 3), keepdim=True)
        return self.bottleneck(torch.cat([x, *(scale(x, mean) for scale in self.scales)], dim=1)), {}


@heads.register("dmnet")
class DMNet(AuxiliaryHead):
    """Depthwise filters computed from the image they filter.   [..., b c h w]   ->   logits b k h w

        o_k = x, pooled to k x k, as a filter for x      b d h w, d = `width`, for each k of `sizes`
        logits = W dropout(CBR3((x, o_1, o_3, o_5, o_7)))             c + 4d -> d -> classes

    The formula of o_k is in `hamburger.contexts.dm`. `fusion` adds a CBR to each size: off in that implementation,
    on in the module that the Hamburger paper measures.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        sizes: Sequence[int] = (1, 3, 5, 7),
        fusion: bool = False,
        dropout: float = 0.1,
        aux_weight: float = 0.4,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        check_counts("DMNet", "sizes", sizes, example=(1, 3, 5, 7))
        check_flag("DMNet", "fusion", fusion)
        c = self.channels[-1]
        self.filters = nn.ModuleList(DynamicFilter(c, width, size, fusion=fusion) for size in sizes)
        self.bottleneck = conv_norm_relu(c + len(sizes) * width, width, 3)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.bottleneck(torch.cat([x, *(branch(x) for branch in self.filters)], dim=1)), {}
