"""The backbone interface and registry, and our own backbones: `tiny`, and dilated ResNets.

The ResNets (He et al., CVPR 2016) are those of HamNet and EMANet, checked against those authors' code. Parameters have
torchvision's names, so weights files of torchvision, timm and the authors fit. The deep stem is that of timm's
`resnet50s`: three convolutions in a sequence named `conv1`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from hamburger.checkpoints.read import Report
from hamburger.errors import OptionError, check_choice, check_count
from hamburger.layers.norm import BatchNorm2d
from hamburger.registry import Registry

STEMS = ("deep", "plain")
STRIDES_IN = ("3x3", "1x1")
# output stride -> the stride and dilation of the last two stages
LAST_STAGES = {8: ((1, 2), (1, 4)), 16: ((2, 1), (1, 2)), 32: ((2, 1), (2, 1))}


class Backbone(nn.Module):
    """b 3 h w   ->   [b c_1 h/s_1 w/s_1, ..., b c_m h/s_m w/s_m], for any h and w (sizes round up).

    Maps come from shallow to deep; `channels` and `strides` are their widths and strides.
    """

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    # The pixel that position j of a map of stride s is centred on: pixel s j (True: convolutions padded on both sides),
    # the middle of patch j (False), or unknown, since the encoder takes images of one size only (None).
    corners: bool | None = True
    report: Report | None = None  # set when pretrained weights were loaded

    def forward(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError


# constructors take keyword arguments only, including `output_stride`
backbones: Registry[Backbone] = Registry("backbone")


@backbones.register("tiny")
class TinyBackbone(Backbone):
    """b 3 h w   ->   maps of 1/2, 1/2, 1/4 and 1/4, with w, w, 2w and 2w channels; w is `width`.

    Four layers of 3x3 convolution, batch norm and ReLU, which two CPU cores can train. The receptive field of the last
    map is only 19 x 19 pixels, so that a task can depend on context.
    """

    def __init__(self, *, width: int = 32, output_stride: int = 4) -> None:
        super().__init__()
        check_count("tiny", "width", width, least=1)
        if output_stride != 4:
            raise OptionError(
                f"tiny: the output stride is always 4 (got output_stride={output_stride!r}); pass output_stride=4"
            )
        self.channels = (width, width, 2 * width, 2 * width)
        self.strides = (2, 2, 4, 4)
        layers, a = [], 3
        for c, stride in zip(self.channels, (2, 1, 2, 1), strict=True):
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


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip.   b a h w   ->   b c h' w'"""

    expansion = 1

    def __init__(self, a: int, c: int, *, stride: int, dilation: int, stride_in: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = make_conv(a, c, 3, stride, dilation), BatchNorm2d(c)
        self.conv2, self.bn2 = make_conv(c, c, 3, 1, dilation), BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = make_shortcut(a, c, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y = y + (x if self.downsample is None else self.downsample(x))
        return self.relu(y)


class BottleneckBlock(nn.Module):
    """1x1 down to a quarter of the width, 3x3, 1x1 up again, and a skip.   b a h w   ->   b c h' w'"""

    expansion = 4

    def __init__(self, a: int, c: int, *, stride: int, dilation: int, stride_in: str) -> None:
        super().__init__()
        d = c // self.expansion
        first, second = (stride, 1) if stride_in == "1x1" else (1, stride)
        self.conv1, self.bn1 = make_conv(a, d, 1, first), BatchNorm2d(d)
        self.conv2, self.bn2 = make_conv(d, d, 3, second, dilation), BatchNorm2d(d)
        self.conv3, self.bn3 = make_conv(d, c, 1), BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = make_shortcut(a, c, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y = y + (x if self.downsample is None else self.downsample(x))
        return self.relu(y)


class ResNet(Backbone):
    """b 3 h w   ->   four maps of strides 4, 8, 16 and 32, none above `output_stride`.

    - `output_stride`: 8, 16 or 32. A stage that would exceed it dilates instead. As in the authors' code, the first
      unit of such a stage has half the dilation of the others, since it still reads the denser map.
    - `multigrid`: factors on the dilations of the last stage, one per unit. (1, 2, 4) gives dilations 1, 4, 8 at stride
      16 and 2, 8, 16 at stride 8. Surplus factors are ignored.
    - `stem`: "deep", three 3x3 convolutions of 64, 64 and 128 channels as in HamNet; "plain", one 7x7 of 64.
    - `stride_in`: the strided convolution of a bottleneck: "3x3" (v1.5: torchvision, timm) or "1x1" (v1: the original
      Caffe and Keras weights). Both kinds of weights have the same names and shapes. With the wrong one a network still
      runs, but worse.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[BottleneckBlock],
        units: Sequence[int],
        *,
        output_stride: int = 16,
        multigrid: Sequence[int] = (1, 2, 4),
        stem: str = "deep",
        stride_in: str = "3x3",
    ) -> None:
        super().__init__()
        if output_stride not in LAST_STAGES:
            raise OptionError(f"ResNet: output_stride must be 8, 16 or 32 (got {output_stride!r})")
        check_choice("ResNet", "stem", stem, STEMS)
        check_choice("ResNet", "stride_in", stride_in, STRIDES_IN)
        if not isinstance(multigrid, (tuple, list)) or len(multigrid) < units[-1]:
            raise OptionError(
                f"ResNet: multigrid needs a factor for each of the {units[-1]} units of the last stage (got "
                f"{multigrid!r}); pass for example {(1, 2, 4)[: units[-1]]}, or ones for no multigrid"
            )
        for factor in multigrid:
            check_count("ResNet", "each factor of multigrid", factor, least=1)
        self.stem, self.stride_in, self.output_stride = stem, stride_in, output_stride
        if stem == "deep":
            width = 128
            self.conv1: nn.Module = nn.Sequential(
                *(make_conv(3, 64, 3, 2), BatchNorm2d(64), nn.ReLU(inplace=True)),
                *(make_conv(64, 64, 3), BatchNorm2d(64), nn.ReLU(inplace=True)),
                make_conv(64, width, 3),
            )
        else:
            width = 64
            self.conv1 = make_conv(3, width, 7, 2)
        self.bn1, self.relu = BatchNorm2d(width), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.channels = tuple(width * block.expansion for width in (64, 128, 256, 512))
        stride_dilation = ((1, 1), (2, 1), *LAST_STAGES[output_stride])
        stages, strides, a = [], [4], width
        for i, (c, n, (stride, dilation)) in enumerate(zip(self.channels, units, stride_dilation, strict=True)):
            grid = multigrid if i == 3 else (1,) * n
            stage = nn.Sequential()
            for j in range(n):
                first = j == 0
                unit_dilation = (max(dilation // 2, 1) if first else dilation) * grid[j]
                stage.append(block(a, c, stride=stride if first else 1, dilation=unit_dilation, stride_in=stride_in))
                a = c
            stages.append(stage)
            strides.append(strides[-1] * stride)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.strides = tuple(strides[1:])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw convolutions from N(0, 2 / (k k out)), as in the authors' code; norms stay at 1 and 0."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                k, _ = module.kernel_size
                nn.init.normal_(module.weight, std=math.sqrt(2 / (k * k * module.out_channels)))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        maps = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            maps.append(x)
        return maps


def make_conv(a: int, c: int, k: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    """Return a convolution padded so that a stride divides the size, rounding up."""
    return nn.Conv2d(a, c, k, stride, padding=dilation * (k // 2), dilation=dilation, bias=False)


def make_shortcut(a: int, c: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and a == c:
        return None
    return nn.Sequential(make_conv(a, c, 1, stride), BatchNorm2d(c))


UNITS: dict[str, tuple[type[BasicBlock] | type[BottleneckBlock], tuple[int, int, int, int]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (BottleneckBlock, (3, 4, 6, 3)),
    "resnet101": (BottleneckBlock, (3, 4, 23, 3)),
}
for _name, (_block, _units) in UNITS.items():
    backbones.register(_name)(partial(ResNet, _block, _units))
