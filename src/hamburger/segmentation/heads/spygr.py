"""SpyGR (Li, Yang, Zhao, Shen, Lin and Liu, "Spatial pyramid based graph reasoning", CVPR 2020).

Rebuilt from the paper's equations and unofficial ports. Uncertain: the norm after the graph convolution, how the map is
downsampled, the number of scales, the layers between pyramid and classifier, and the auxiliary loss, for which no
source was found.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hamburger.contexts.common import conv_norm_relu
from hamburger.contexts.spygr import SpyGR
from hamburger.segmentation.heads.base import AuxiliaryHead, PixelClassifier, heads


@heads.register("spygr")
class SpyGRNet(AuxiliaryHead):
    """Graph reasoning on a pyramid of the reduced map.   [..., b c h w]   ->   logits b k h w

        logits = W dropout(SpyGR(CBR3(x)))               c -> `width` -> k

    `embedding` and `scales` are options of the unit, `hamburger.contexts.spygr`.

    Loss: cross-entropy "ce"; `aux_weight` adds an FCN head on the second-deepest map, "aux".
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        embedding: int = 64,
        scales: int = 3,
        dropout: float = 0.1,
        aux_weight: float = 0.0,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        self.reason = nn.Sequential(
            conv_norm_relu(self.channels[-1], width, 3), SpyGR(width, embedding=embedding, scales=scales)
        )
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.reason(x), {}
