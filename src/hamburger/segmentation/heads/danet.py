"""DANet (Fu et al., "Dual attention network for scene segmentation", CVPR 2019).

Checked against the authors' code, which differs from the paper in the channel branch: see `cam_invert`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hamburger.contexts.common import conv_norm_relu
from hamburger.contexts.da import ChannelAttention, PositionAttention
from hamburger.errors import OptionError, check_count, check_flag
from hamburger.segmentation.heads.base import AuxiliaryHead, PixelClassifier, heads
from hamburger.segmentation.losses import cross_entropy


@heads.register("danet")
class DANet(AuxiliaryHead):
    """Attention over positions in parallel with attention over channels.   [..., b c h w]   ->   logits b k h w

        p = CBR3(PAM(CBR3(x))),   q = CBR3(CAM(CBR3(x)))              c -> `width` -> `width`
        logits = W dropout(p + q)

    `inner` is the width of PAM's queries and keys, by default `width` / 8. `cam_invert` selects the channel attention
    of the authors' code (True) or of their paper (False).

    Loss: three cross-entropies of equal weight: "ce" of the sum, and "position" and "channel" of each branch through
    its own classifier, in training only. `aux_weight` adds an FCN head on the second-deepest map, as some ports do.
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
