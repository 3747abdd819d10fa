"""APCNet (He, Deng, Zhou, Wang and Qiao, "Adaptive pyramid context network for semantic segmentation", CVPR 2019).

Checked against a widely used port, which is also the source of the auxiliary loss and its weight. Not verified: whether
the paper itself applies a sigmoid to the affinity.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamburger.contexts.apc import AdaptiveContext
from hamburger.contexts.common import check_counts, conv_norm_relu
from hamburger.errors import check_count, check_flag
from hamburger.segmentation.heads.base import AuxiliaryHead, PixelClassifier, heads


@heads.register("apcnet")
class APCNet(AuxiliaryHead):
    """Pyramid pooling with cell weights predicted per position.   [..., b c h w]   ->   logits b k h w

        o_s = the adaptive context of an s x s grid      b d h w, d = `width`, for each s of `scales`
        logits = W dropout(CBR3((x, o_1, o_2, o_3, o_6)))             c + 4d -> d -> k

    The formula of o_s is in `hamburger.contexts.apc`. Here its global vector comes from the reduced map, as in the
    port. `fusion`: whether each scale ends in a CBR.

    Loss: cross-entropy "ce", plus `aux_weight` times that of an FCN head on the second-deepest map, "aux".
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
        super().__init__(channels, num_classes, aux_weight=aux_weight, aux_width=aux_width, dropout=dropout)
        check_count("APCNet", "width", width, least=1)
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
