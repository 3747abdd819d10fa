"""EfficientNet-Lite0 as a feature extractor, with the parameter names of the package efficientnet_lite_pytorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 1280
EPS = 1e-3
# kernel size, stride of the first block, expansion, channels, blocks
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


class SameConv(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding: ceil(size / stride) pixels out, odd padding at the bottom right."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            missing = max(0, (-(-size // stride) - 1) * stride + kernel - size)
            pads += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, pads))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; a shortcut if the shape does not change."""

    def __init__(self, c: int, out: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = c * expansion
        self.expands = expansion != 1
        self.shortcut = stride == 1 and c == out
        if self.expands:
            self._expand_conv = SameConv(c, inner, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(inner, eps=EPS)
        self._depthwise_conv = SameConv(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = nn.BatchNorm2d(inner, eps=EPS)
        self._project_conv = SameConv(inner, out, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(out, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.shortcut else y


class EfficientNetLite0(nn.Module):
    """Pooled features before the classifier.   b 3 224 224, in [0, 1]    ->    b 1280

    `_fc` is not used; it is here because the weights file has it.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self._conv_stem = SameConv(3, 32, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(32, eps=EPS)
        blocks, c = [], 32
        for kernel, stride, expansion, out, count in STAGES:
            for i in range(count):
                first = stride if i == 0 else 1
                blocks.append(InvertedResidual(c, out, kernel=kernel, stride=first, expansion=expansion))
                c = out
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = SameConv(c, FEATURES, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(FEATURES, eps=EPS)
        self._fc = nn.Linear(FEATURES, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = (255 * x - 127) / 128
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean((2, 3))
