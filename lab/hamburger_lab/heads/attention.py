"""Three heads whose pixels attend to other pixels, to a few bases, or to the mean feature of each class.

- DANet (Fu et al., "Dual attention network for scene segmentation", CVPR 2019): checked against the authors' code,
  which differs from the paper in the channel branch: see `cam_invert`
- EMANet (Li, Zhong, Wu, Yang, Lin and Liu, "Expectation-maximization attention networks", ICCV 2019): checked against
  the authors' code
- OCRNet (Yuan, Chen and Wang, "Object-contextual representations for semantic segmentation", ECCV 2020): checked
  against an independent implementation. The dropout rate is the original's from memory, not verified; that
  implementation has 0.1. It is also the source of the width of the coarse head; others use 512.

CBRk: a k x k convolution, batch norm, ReLU; CBR is CBR1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from hamburger.contexts.common import conv_norm_relu, resize
from hamburger.contexts.da import ChannelAttention, PositionAttention
from hamburger.contexts.ema import EMAU
from hamburger.contexts.ocr import OCR
from hamburger.errors import OptionError, check_count, check_flag, check_positive
from hamburger.segmentation.heads.base import HeadOutputs, PixelClassifier, check_features, check_head, heads
from hamburger.segmentation.losses import cross_entropy
from hamburger_lab.heads.base import AuxiliaryHead, FCNHead, MultiLossHead


@heads.register("danet")
class DANet(AuxiliaryHead):
    """Attention over positions in parallel with attention over channels.   [..., b c h w]   ->   logits b k h w

        p = CBR3(PAM(CBR3(x))),   q = CBR3(CAM(CBR3(x)))              c -> `width` -> `width`
        logits = W dropout(p + q)

    `inner` is the width of PAM's queries and keys, by default `width` / 8. `cam_invert` selects the channel attention
    of the authors' code (True) or of their paper (False).

    Loss: three cross-entropies of equal weight: "ce" of the sum, and "position" and "channel" of each branch through
    its own classifier, in training only. `aux_weight` adds an FCN head on the second-deepest map, as others do.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        inner: int | None = None,
        cam_invert: bool = True,
        dropout: float = 0.1,
        aux_weight: float = 0.0,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        check_flag("DANet", "cam_invert", cam_invert)
        inner = width // 8 if inner is None else inner
        if inner == 0:
            raise OptionError(f"DANet: width / 8 is zero (got width={width}); set inner")
        check_count("DANet", "inner", inner, least=1)
        self.terms |= {"position": (1.0, cross_entropy), "channel": (1.0, cross_entropy)}

        def branch(attention: nn.Module) -> nn.Sequential:
            return nn.Sequential(
                conv_norm_relu(self.channels[-1], width, 3), attention, conv_norm_relu(width, width, 3)
            )

        self.position = branch(PositionAttention(width, inner=inner))
        self.channel = branch(ChannelAttention(invert=cam_invert))
        self.classifier, self.position_classifier, self.channel_classifier = (
            PixelClassifier(width, num_classes, dropout=dropout) for _ in range(3)
        )

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        p, q = self.position(x), self.channel(x)
        if not self.training:
            return p + q, {}
        return p + q, {"position": self.position_classifier(p), "channel": self.channel_classifier(q)}


@heads.register("emanet")
class EMANet(AuxiliaryHead):
    """Reconstruct pixels from a few bases, between two 3 x 3 convolutions.   [..., b c h w]   ->   logits b k h w

        logits = W dropout(CBR3(EMAU(CBR3(x))))          c -> `width` -> `out_width` -> k

    HamNet has the same frame, so the two can be compared directly. `rank`, `steps` and `momentum` are options of the
    module `hamburger.contexts.ema`; its first convolution is frozen, since the paper sends it no gradient.
    The 3 x 3 convolutions are initialised from N(0, 2 / (9 out)), the classifier with torch's default.
    Some implementations add an auxiliary loss: aux_weight=0.4.
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


@heads.register("ocrnet")
class OCRNet(MultiLossHead):
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
        self.terms = {"aux": (aux_weight, cross_entropy)}
        self.coarse = FCNHead(self.channels[-2], aux_width, num_classes, dropout=dropout)
        self.reduce = conv_norm_relu(self.channels[-1], width, 3)
        self.ocr = OCR(width, width=key_width)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features("OCRNet", features, self.channels)
        coarse, x = self.coarse(features[-2]), self.reduce(features[-1])
        logits = self.classifier(self.ocr(x, resize(coarse, x)))
        return HeadOutputs(logits, {"aux": coarse} if self.training else {})
