"""What a backbone promises: feature maps from shallow to deep, and their widths and strides."""

from __future__ import annotations

from torch import Tensor, nn

from hamburger.backbones.report import LoadReport
from hamburger.registry import Registry


class Backbone(nn.Module):
    """b 3 h w   ->   [b c_1 h/s_1 w/s_1, ..., b c_m h/s_m w/s_m], for any h and w (sizes round up)."""

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    # Where position j of a map of stride s lies: on pixel s j (True: convolutions padded on both sides), in the middle
    # of patch j (False), or nobody knows, since the encoder takes one size of image only (None).
    corners: bool | None = True
    report: LoadReport | None = None  # of the pretrained weights, where there are any

    def forward(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError


# constructors take keywords only, `output_stride` among them
backbones: Registry[Backbone] = Registry("backbone")
