"""Two heads of the same authors that share a context encoding module.

- EncNet (Zhang, Dana, Shi, Zhang, Wang, Tyagi and Agrawal, "Context encoding for semantic segmentation", CVPR 2018):
  checked against the authors' code, without its lateral connections to earlier maps, which are off by default there
- CFNet (Zhang, Zhang, Wang and Xie, "Co-occurrent features in semantic segmentation", CVPR 2019): the modules were
  checked against the authors' code. The auxiliary loss and its weight come from the library that code builds on. It is
  uncertain whether the published numbers were trained with the encoding module.

CBRk: a k x k convolution, batch norm, ReLU; CBR is CBR1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hamburger.contexts.acf import ACF
from hamburger.contexts.common import conv_norm_relu
from hamburger.contexts.enc import Enc
from hamburger.errors import check_flag, check_positive
from hamburger.segmentation.heads.base import PixelClassifier, heads
from hamburger_lab.heads.base import AuxiliaryHead
from hamburger_lab.heads.losses import presence_loss


@heads.register("encnet")
class EncNet(AuxiliaryHead):
    """Gate channels by a soft codebook encoding of the image.   [..., b c h w]   ->   logits b k h w

        logits = W dropout(Enc(CBR3(x)))                 c -> `width` -> k

    A further loss is `se_weight` times the semantic encoding loss "se", a binary cross-entropy per class: is it in the
    image?
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


SE_WEIGHT = 0.2


@heads.register("cfnet")
class CFNet(AuxiliaryHead):
    """Aggregated co-occurrent features next to the image mean.   [..., b c h w]   ->   logits b k h w

        u = CBR3(x)                                      c -> `width`
        v = (ACF(u), CBR(mean over positions of u))      2 `width`; the mean is repeated at every position
        logits = W dropout(v)

    `attention_heads` and `mixtures` are options of ACF; the authors' defaults are 8 and 1. `encoding` inserts EncNet's
    module between v and the classifier, with 0.2 times its loss "se".
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        attention_heads: int = 8,
        mixtures: int = 1,
        encoding: bool = False,
        dropout: float = 0.1,
        aux_weight: float = 0.2,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        check_flag("CFNet", "encoding", encoding)
        self.terms["se"] = (SE_WEIGHT, presence_loss)
        self.reduce = conv_norm_relu(self.channels[-1], width, 3)
        self.acf = ACF(width, heads=attention_heads, mixtures=mixtures)
        self.whole = conv_norm_relu(width, width)
        self.encode = Enc(2 * width, num_classes=num_classes) if encoding else None
        self.classifier = PixelClassifier(2 * width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        u = self.reduce(x)
        whole = self.whole(u.mean((2, 3), keepdim=True))
        v = torch.cat([self.acf(u), whole.expand_as(u)], dim=1)
        if self.encode is None:
            return v, {}
        if self.training:
            y, se = self.encode(v, return_se=True)
            return y, {"se": se}
        return self.encode(v), {}
