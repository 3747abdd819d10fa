"""The small heads that others share: a linear classifier, and the FCN head on an earlier map."""

from __future__ import annotations

from torch import nn

from hamburger.layers.context.blocks import conv, conv_norm_relu
from hamburger.layers.dropout import Dropout2d


class Classifier(nn.Sequential):
    """Dropout of whole channels, then a linear map at every position.   b c h w   ->   b k h w"""

    def __init__(self, channels: int, num_classes: int, *, dropout: float) -> None:
        super().__init__(Dropout2d(dropout), conv(channels, num_classes, bias=True))


class FCN(nn.Sequential):
    """3 x 3 convolution, batch norm, ReLU, classifier.   b c h w   ->   b k h w"""

    def __init__(self, channels: int, width: int, num_classes: int, *, dropout: float) -> None:
        super().__init__(conv_norm_relu(channels, width, 3), Classifier(width, num_classes, dropout=dropout))
