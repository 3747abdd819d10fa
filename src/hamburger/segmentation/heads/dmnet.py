"""DMNet (He, Deng and Qiao, "Dynamic multi-scale filters for semantic segmentation", ICCV 2019).

Checked against a widely used port, which is also the source of the auxiliary loss and its weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_counts, conv_norm_relu
from hamburger.contexts.dm import DynamicFilter
from hamburger.errors import check_count, check_flag
from hamburger.segmentation.heads.base import AuxiliaryHead, PixelClassifier, heads


@heads.register("dmnet")
class DMNet(AuxiliaryHead):
    """Depthwise filters computed from the image they filter.   [..., b c h w]   ->   logits b k h w

        o_k = x, pooled to k x k, as a filter for x      b d h w, d = `width`, for each k of `sizes`
        logits = W dropout(CBR3((x, o_1, o_3, o_5, o_7)))             c + 4d -> d -> classes

    The formula of o_k is in `hamburger.contexts.dm`. `fusion` adds a CBR to each size: off in the port's network, on in
    the module that the Hamburger paper measures.

    Loss: cross-entropy "ce", plus `aux_weight` times that of an FCN head on the second-deepest map, "aux".
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
        super().__init__(channels, num_classes, aux_weight=aux_weight, aux_width=aux_width, dropout=dropout)
        check_count("DMNet", "width", width, least=1)
        check_counts("DMNet", "sizes", sizes, example=(1, 3, 5, 7))
        check_flag("DMNet", "fusion", fusion)
        c = self.channels[-1]
        self.filters = nn.ModuleList(DynamicFilter(c, width, size, fusion=fusion) for size in sizes)
        self.bottleneck = conv_norm_relu(c + len(sizes) * width, width, 3)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.bottleneck(torch.cat([x, *(branch(x) for branch in self.filters)], dim=1)), {}
