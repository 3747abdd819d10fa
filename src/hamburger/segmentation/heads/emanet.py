"""EMANet (Li, Zhong, Wu, Yang, Lin and Liu, "Expectation-maximization attention networks", ICCV 2019).

Checked against the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from hamburger.contexts.common import conv_norm_relu
from hamburger.contexts.ema import EMAU
from hamburger.segmentation.heads.base import AuxiliaryHead, PixelClassifier, heads


@heads.register("emanet")
class EMANet(AuxiliaryHead):
    """Reconstruct pixels from a few bases, between two 3 x 3 convolutions.   [..., b c h w]   ->   logits b k h w

        logits = W dropout(CBR3(EMAU(CBR3(x))))          c -> `width` -> `out_width` -> k

    HamNet has the same frame, so the two can be compared directly. `rank`, `steps` and `momentum` are options of the
    module `hamburger.contexts.ema`; its first convolution is frozen, since the paper sends it no gradient.
    The 3 x 3 convolutions are initialised from N(0, 2 / (9 out)), the classifier with torch's default.

    Loss: cross-entropy "ce" alone; some ports add an FCN head on the second-deepest map: aux_weight=0.4.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        out_width: int = 256,
        rank: int = 64,
        steps: int = 3,
        momentum: float = 0.9,
        dropout: float = 0.1,
        aux_weight: float = 0.0,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width, out_width=out_width)
        before, after = conv_norm_relu(self.channels[-1], width, 3), conv_norm_relu(width, out_width, 3)
        self.frame = nn.Sequential(before, EMAU(width, rank=rank, steps=steps, momentum=momentum), after)
        self.classifier = PixelClassifier(out_width, num_classes, dropout=dropout)
        for block, out in ((before, width), (after, out_width)):
            nn.init.normal_(block.get_parameter("0.weight"), std=math.sqrt(2 / (9 * out)))

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.frame(x), {}
