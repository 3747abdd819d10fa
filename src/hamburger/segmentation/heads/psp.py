"""PSPNet (Zhao, Shi, Qi, Wang and Jia, "Pyramid scene parsing network", CVPR 2017).

Checked against a widely used port.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_counts, conv_norm_relu
from hamburger.contexts.psp import pool_to_grid, resize_from_grid
from hamburger.errors import OptionError, check_count
from hamburger.segmentation.heads.base import AuxiliaryHead, PixelClassifier, heads


@heads.register("pspnet")
class PSPNet(AuxiliaryHead):
    """Concatenate the map with its means over grids of several sizes.   [..., b c h w]   ->   logits b k h w

        p_s = bilinear(CBR(grid(x, s)))                  b c/4 h w, for each s of `scales`; grid: means over s x s cells
        logits = W dropout(CBR3((x, p_1, p_2, p_3, p_6)))             c + c -> `width` -> k

    Loss: cross-entropy "ce", plus `aux_weight` times that of an FCN head on the second-deepest map, "aux". The weight
    is 0.4 in the paper and 0.2 in a known port.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        scales: Sequence[int] = (1, 2, 3, 6),
        dropout: float = 0.1,
        aux_weight: float = 0.4,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, aux_weight=aux_weight, aux_width=aux_width, dropout=dropout)
        check_count("PSPNet", "width", width, least=1)
        c = self.channels[-1]
        check_counts("PSPNet", "scales", scales, example=(1, 2, 3, 6))
        if len(scales) > c:
            raise OptionError(
                f"PSPNet: more scales than channels (got {len(scales)} scales, {c} channels); pass fewer scales"
            )
        self.scales, share = tuple(scales), c // len(scales)
        self.branches = nn.ModuleList(conv_norm_relu(c, share) for _ in scales)
        self.bottleneck = conv_norm_relu(c + share * len(scales), width, 3)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        pyramid = [
            resize_from_grid(branch(pool_to_grid(x, scale)), x.shape[2:])
            for scale, branch in zip(self.scales, self.branches, strict=True)
        ]
        return self.bottleneck(torch.cat([x, *pyramid], dim=1)), {}
