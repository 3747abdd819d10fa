"""EncNet (Zhang, Dana, Shi, Zhang, Wang, Tyagi and Agrawal, "Context encoding for semantic segmentation", CVPR 2018).

Checked against the authors' code, whose lateral connections to earlier maps, off by default there, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hamburger.contexts.common import conv_norm_relu
from hamburger.contexts.enc import Enc
from hamburger.errors import check_count, check_positive
from hamburger.segmentation.heads.base import AuxiliaryHead, PixelClassifier, heads
from hamburger.segmentation.losses import find_labelled_images, presence_loss


@heads.register("encnet")
class EncNet(AuxiliaryHead):
    """A gate on channels from a soft codebook of the image.   [..., b c h w]   ->   logits b k h w

        logits = W dropout(Enc(CBR3(x)))                 c -> `width` -> k

    Loss: cross-entropy "ce"; `aux_weight` times that of an FCN head on the map before, "aux"; and `se_weight` times the
    semantic encoding loss "se", a binary cross-entropy per class: is it somewhere in the image?
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
        super().__init__(channels, num_classes, aux_weight=aux_weight, aux_width=aux_width, dropout=dropout)
        check_count("EncNet", "width", width, least=1)
        check_positive("EncNet", "se_weight", se_weight, zero=True)
        self.terms["se"] = (se_weight, presence_loss)
        self.supervise = se_weight > 0
        self.reduce = conv_norm_relu(self.channels[-1], width, 3)
        # without its loss the head of the classes would never be trained, which DDP takes for a mistake
        self.encode = Enc(width, codewords=codewords, num_classes=num_classes if self.supervise else None)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.reduce(x)
        if self.training and self.supervise:
            y, se = self.encode(x, return_se=True)
            return y, {"se": se}
        return self.encode(x), {}

    def counts(self, target: Tensor) -> dict[str, Tensor]:
        return {"se": find_labelled_images(target).sum()}
