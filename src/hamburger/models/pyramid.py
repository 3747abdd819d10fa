"""A ResNet of torchvision, or a tiny encoder, with a feature pyramid behind it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision.models import resnet
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from hamburger.errors import OptionError, check_choice
from hamburger.layers.norm import BatchNorm2d

TINY = "tiny"
ENCODERS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", TINY)
NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": BatchNorm2d, "frozen": FrozenBatchNorm2d}
STEM = ("conv1", "bn1")
STAGES = ("layer1", "layer2", "layer3", "layer4")
LEVELS = len(STAGES) + 1  # of the pyramid: one more by a stride


def create_pyramid(backbone: str, *, channels: int, norm: str = "batch", frozen: int = 0) -> Any:
    """Maps of strides 4, 8, 16, 32 and 64, each of `channels`.   b 3 h w   ->   {"0": b c h/4 w/4, ..., "pool": ...}

    `frozen`: how many parts of the encoder, of stem, layer1, ... layer4, are not trained.
    """
    call = "create_pyramid"
    check_choice(call, "backbone", backbone, ENCODERS)
    check_choice(call, "norm", norm, NORMS)
    if frozen not in range(LEVELS + 1):
        raise OptionError(f"{call}: frozen counts the stem and four layers, 0 ... {LEVELS}, got {frozen!r}")
    if backbone == TINY:
        encoder, widths = tiny(NORMS[norm]), list(TINY_WIDTHS)
    else:
        encoder = getattr(resnet, backbone)(weights=None, norm_layer=NORMS[norm])
        widths = [encoder.fc.in_features // 2**i for i in (3, 2, 1, 0)]
    for part in (STEM, *((stage,) for stage in STAGES))[:frozen]:
        for name in part:
            encoder.get_submodule(name).requires_grad_(False)
    returned = {stage: str(i) for i, stage in enumerate(STAGES)}
    return BackboneWithFPN(encoder, returned, widths, channels, extra_blocks=LastLevelMaxPool())


TINY_WIDTHS = (16, 24, 32, 48)


def tiny(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """One convolution a stage, under the names of a ResNet: seconds on a CPU."""
    parts: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(3, TINY_WIDTHS[0], 3, stride=2, padding=1, bias=False)),
        ("bn1", norm(TINY_WIDTHS[0])),
        ("relu", nn.ReLU(inplace=True)),
    ]
    inner = TINY_WIDTHS[0]
    for stage, width in zip(STAGES, TINY_WIDTHS, strict=True):
        convolution = nn.Conv2d(inner, width, 3, stride=2, padding=1, bias=False)
        parts.append((stage, nn.Sequential(convolution, norm(width), nn.ReLU(inplace=True))))
        inner = width
    encoder = nn.Sequential(OrderedDict(parts))
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return encoder
