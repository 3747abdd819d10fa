"""Four convolutions: an encoder that two CPU cores can train, and that sees too little to do without context."""

from __future__ import annotations

import math

from torch import Tensor, nn

from hamburger.backbones.base import Backbone, backbones
from hamburger.errors import OptionError, check_count
from hamburger.layers.norm import BatchNorm2d

STRIDES = (2, 1, 2, 1)


@backbones.register("tiny")
class Tiny(Backbone):
    """b 3 h w   ->   maps of 1/2, 1/2, 1/4 and 1/4, with w, w, 2w and 2w channels; w is `width`.

    Each layer is a 3x3 convolution, batch norm and ReLU. A position of the last map sees 19 x 19 pixels, by design.
    """

    def __init__(self, *, width: int = 32, output_stride: int = 4) -> None:
        super().__init__()
        check_count("tiny", "width", width, least=1)
        if output_stride != 4:
            raise OptionError(f"tiny: its stride is 4, got output_stride={output_stride!r}; pass output_stride=4")
        self.channels = (width, width, 2 * width, 2 * width)
        self.strides = (2, 2, 4, 4)
        layers, a = [], 3
        for c, stride in zip(self.channels, STRIDES, strict=True):
            convolution = nn.Conv2d(a, c, 3, stride, padding=1, bias=False)
            nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * c)))
            layers.append(nn.Sequential(convolution, BatchNorm2d(c), nn.ReLU(inplace=True)))
            a = c
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for layer in self.layers:
            x = layer(x)
            maps.append(x)
        return maps
