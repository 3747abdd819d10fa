"""LightHam, the decoder of SegNeXt (Guo, Lu, Hou, Liu, Cheng and Hu, NeurIPS 2022), for pyramid encoders.

Checked against the authors' code and its ports. `hamburger.contexts.lightham` has everything except dropout and
classifier.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hamburger.contexts.lightham import LightHam as Unit
from hamburger.errors import check_count
from hamburger.hams.decompose import Gradient, GradientName
from hamburger.segmentation.heads.base import Head, HeadOutputs, PixelClassifier, check_features, check_head, heads


@heads.register("lightham")
class LightHamHead(Head):
    """[..., b c_1 h w, b c_2 h/2 w/2, b c_3 h/4 w/4]   ->   logits b k h w

    The last `maps` maps are resized to the first of them and concatenated, then

        logits = W dropout(unit(maps)) + bias            c_1 + c_2 + c_3 -> `inner` -> `width` -> k

    - `width`, `inner`: 256 for the small encoders of the paper, 512 and 1024 for its larger ones; `inner` is `width` by
      default.
    - `rank`, `steps`, `eval_steps`, `grad`, `groups`, `seed`: options of the unit; by default its gradient is
      back-propagation through all steps, as published.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 256,
        inner: int | None = None,
        maps: int = 3,
        dropout: float = 0.1,
        rank: int = 64,
        steps: int = 6,
        eval_steps: int = 7,
        grad: GradientName | Gradient = "bptt",
        groups: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_count("LightHam", "maps", maps, least=1)
        self.channels = check_head("LightHam", channels, num_classes, maps=maps, use="which it concatenates")
        self.maps = maps
        self.decoder = Unit(
            width,
            inner=inner,
            in_channels=self.channels[-maps:],
            rank=rank,
            steps=steps,
            eval_steps=eval_steps,
            grad=grad,
            groups=groups,
            seed=seed,
        )
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features("LightHam", features, self.channels)
        return HeadOutputs(self.classifier(self.decoder(features[-self.maps :])), {})
