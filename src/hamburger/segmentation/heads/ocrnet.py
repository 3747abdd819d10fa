"""OCRNet (Yuan, Chen and Wang, "Object-contextual representations for semantic segmentation", ECCV 2020).

Checked against a widely used port. The dropout rate is the original's from memory, not verified; the port has 0.1. The
width of the coarse head is the port's; other implementations use 512.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hamburger.contexts.common import conv_norm_relu, resize
from hamburger.contexts.ocr import OCR
from hamburger.errors import check_count, check_positive
from hamburger.segmentation.heads.base import (
    FCNHead,
    Head,
    HeadOutputs,
    PixelClassifier,
    check_features,
    check_head,
    heads,
)
from hamburger.segmentation.losses import cross_entropy


@heads.register("ocrnet")
class OCRNet(Head):
    """Pixels attend to the mean feature of each class.   [..., b c' h' w', b c h w]   ->   logits b k h w

        coarse = FCN(second-deepest map)                 b k h w: the soft regions, resized if maps differ in size
        logits = W dropout(OCR(CBR3(x), coarse))         c -> `width` -> k

    `key_width` is the width of queries, keys and values. The prediction depends on the coarse logits, so they are
    computed in evaluation too.

    Loss: cross-entropy "ce", plus `aux_weight` times that of the coarse logits, "aux".
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        key_width: int = 256,
        dropout: float = 0.05,
        aux_weight: float = 0.4,
        aux_width: int = 256,
    ) -> None:
        super().__init__()
        use = "the deepest for its pixels and the one before it for the coarse classes"
        self.channels = check_head("OCRNet", channels, num_classes, maps=2, use=use, aux_width=aux_width)
        check_count("OCRNet", "width", width, least=2)
        check_positive("OCRNet", "aux_weight", aux_weight, zero=True)
        self.aux_weight = aux_weight
        self.coarse = FCNHead(self.channels[-2], aux_width, num_classes, dropout=dropout)
        self.reduce = conv_norm_relu(self.channels[-1], width, 3)
        self.ocr = OCR(width, width=key_width)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features("OCRNet", features, self.channels)
        coarse, x = self.coarse(features[-2]), self.reduce(features[-1])
        logits = self.classifier(self.ocr(x, resize(coarse, x)))
        return HeadOutputs(logits, {"aux": coarse} if self.training else {})

    def loss(self, outputs: HeadOutputs, target: Tensor) -> dict[str, Tensor]:
        terms = super().loss(outputs, target)
        if "aux" in outputs.aux:
            terms["aux"] = self.aux_weight * cross_entropy(outputs.aux["aux"], target)
        return terms
