"""EncNet (Zhang, Dana, Shi, Zhang, Wang, Tyagi and Agrawal, "Context encoding for semantic segmentation", CVPR 2018).

Checked against the authors' code, without its lateral connections to earlier maps, which are off by default there.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hamburger.contexts.common import conv_norm_relu
from hamburger.contexts.enc import Enc
from hamburger.errors import check_positive
from hamburger.segmentation.heads.base import AuxiliaryHead, PixelClassifier, heads
from hamburger.segmentation.losses import presence_loss


@heads.register("encnet")
class EncNet(AuxiliaryHead):
    """Gate channels by a soft codebook encoding of the image.   [..., b c h w]   ->   logits b k h w

        logits = W dropout(Enc(CBR3(x)))                 c -> `width` -> k

    Loss: cross-entropy "ce"; `aux_weight` times that of an FCN head on the second-deepest map, "aux"; and `se_weight`
    times the semantic encoding loss "se", a binary cross-entropy per class: is it anywhere in the image?
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        codewords: int = 32,
        dropout: float = 0.1,
        se_weight: float = 0.2,
        aux_weight: float = 0.2,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        check_positive("EncNet", "se_weight", se_weight, zero=True)
        self.terms["se"] = (se_weight, presence_loss)
        self.supervise = se_weight > 0
        self.reduce = conv_norm_relu(self.channels[-1], width, 3)
        # DDP reports parameters that get no gradient, so without the loss there is no class prediction
        self.encode = Enc(width, codewords=codewords, num_classes=num_classes if self.supervise else None)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.reduce(x)
        if self.training and self.supervise:
            y, se = self.encode(x, return_se=True)
            return y, {"se": se}
        return self.encode(x), {}
