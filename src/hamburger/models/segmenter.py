"""A segmentation network: backbone, head, and logits at the size of the image."""

from __future__ import annotations

from typing import overload

import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.backbones.base import Backbone
from hamburger.heads.base import Head


class Segmenter(nn.Module):
    """b 3 h w   ->   logits b k h w, for any h and w.

    With labels (b h w, 255 where unlabelled) the answer is the loss instead: its terms by name, to be summed. Loss and
    logits share one `forward`, so that DDP and `torch.compile` see both.
    """

    def __init__(self, backbone: Backbone, head: Head, *, num_classes: int) -> None:
        super().__init__()
        self.backbone, self.head, self.num_classes = backbone, head, num_classes

    @overload
    def forward(self, x: Tensor) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]: ...
    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        outputs = self.head(self.backbone(x))
        if target is not None:
            return self.head.loss(outputs, target)
        return F.interpolate(outputs.logits, size=x.shape[-2:], mode="bilinear", align_corners=True)
