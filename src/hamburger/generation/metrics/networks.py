"""The networks of the built-in extractors: FID's Inception from torchvision's, and timm's EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.inception import (
    BasicConv2d,
    Inception3,
    InceptionA,
    InceptionAux,
    InceptionB,
    InceptionC,
    InceptionD,
    InceptionE,
)

# -- Inception ---------------------------------------------------------------------------------------------------------


def _average_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def _max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 1, 1)


class FidPooling:
    """Replaces the last branch of a block, which pools, by one with the pooling of the network of 2015."""

    pool: Callable[[Tensor], Tensor] = staticmethod(_average_pool)
    branch_pool: nn.Module
    _forward: Callable[[Tensor], list[Tensor]]

    def forward(self, x: Tensor) -> Tensor:
        *branches, _ = self._forward(x)
        return torch.cat([*branches, self.branch_pool(self.pool(x))], 1)


class FidInceptionA(FidPooling, InceptionA):  # type: ignore[misc] # torchvision has no types
    pass


class FidInceptionC(FidPooling, InceptionC):  # type: ignore[misc]
    pass


class FidInceptionE(FidPooling, InceptionE):  # type: ignore[misc]
    pass


class FidInception(Inception3):  # type: ignore[misc]
    """The network of 2015-12-05 that FID is defined by; pooled features.   b 3 299 299, in [0, 1]    ->    b 2048

    Three differences from torchvision's `inception_v3` are needed for the same features: average pooling excludes the
    padding; the last block pools by maximum; there are 1008 classes and no auxiliary classifier.

    Bytes are scaled to [-1, 1] as in the package pytorch-fid, x / 127.5 - 1. The original graph, and the package
    torch-fidelity, compute (x - 128) / 128 instead; apart from that the network here is torch-fidelity's.
    """

    def __init__(self) -> None:
        blocks = [BasicConv2d, FidInceptionA, InceptionB, FidInceptionC, InceptionD, FidInceptionE, InceptionAux]
        super().__init__(num_classes=1008, aux_logits=False, inception_blocks=blocks, init_weights=False)
        self.Mixed_7c.pool = _max_pool

    def forward(self, x: Tensor) -> Tensor:
        x = 2 * x - 1
        for layer in list(self.children())[:-3]:  # without pooling, dropout and classifier
            x = layer(x)
        return x.mean((2, 3))


# -- EfficientNet-Lite0 ------------------------------------------------------------------------------------------------


class EfficientNetLite0(nn.Module):
    """Pooled features before the classifier.   b 3 224 224, in [0, 1]    ->    b 1280"""

    def __init__(self) -> None:
        super().__init__()
        self.net: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net.forward_features((255 * x - 127) / 128)
        return features.mean((2, 3))

    def rename(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state dict of the package efficientnet_lite_pytorch with the names of this network."""
        names = {
            "_conv_stem": "conv_stem",
            "_bn0": "bn1",
            "_conv_head": "conv_head",
            "_bn1": "bn2",
            "_fc": "classifier",
        }
        first = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
        other = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
        other |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}
        blocks = [f"blocks.{stage}.{i}" for stage, part in enumerate(self.net.blocks) for i in range(len(part))]
        for number, block in enumerate(blocks):
            for theirs, ours in (other if number else first).items():
                names[f"_blocks.{number}.{theirs}"] = f"{block}.{ours}"
        layers = {key: key.rpartition(".") for key in state}
        return {
            f"net.{names[layer]}.{field}" if layer in names else key: state[key]
            for key, (layer, _, field) in layers.items()
        }
