"""EfficientNet-Lite0 of the package efficientnet_lite_pytorch: as a feature extractor, and as a backbone's weights.

Distances between its features are compared with each other and never called FID.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import timm
import torch
from torch import Tensor, nn

from hamburger.checkpoints.read import read_checkpoint
from hamburger.errors import CheckpointError
from hamburger.training.image_files import MEAN, STD
from hamburger_lab.gan_metrics.extractors import NetworkExtractor, file_digest

VERSION = "1"  # of the features; change it when the network computes others


def efficientnet_lite0(path: str | os.PathLike[str], *, size: int = 224) -> NetworkExtractor:
    """EfficientNet-Lite0 up to its pooling, 1280 features, from a weights file of efficientnet_lite_pytorch."""
    network = EfficientNetLite0()
    try:
        network.load_state_dict(network.rename(read_checkpoint(path)))
    except RuntimeError as error:
        raise CheckpointError(f"efficientnet_lite0: {path} does not fit: {error}") from None
    network.to(memory_format=torch.channels_last)
    return NetworkExtractor(network, "efficientnet_lite0", size=size, digest=file_digest(path), version=VERSION)


class EfficientNetLite0(nn.Module):
    """Pooled features before the classifier.   b 3 224 224, in [0, 1]    ->    b 1280"""

    def __init__(self) -> None:
        super().__init__()
        self.net: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
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


def backbone_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under timm's names, for images normalised by ImageNet's mean and std.

    The package normalises by (255 x - 127) / 128. Both are affine, so the first convolution and the mean of its batch
    norm absorb the difference; only at the edges of the image, where zeros are padded, does the output change.
    """
    network = EfficientNetLite0()
    network.load_state_dict(network.rename(state))
    values = {name: value.clone() for name, value in network.net.state_dict().items()}
    values = {name: value for name, value in values.items() if name.startswith(("conv_stem.", "bn1.", "blocks."))}
    weight = values["conv_stem.weight"]
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, STD))
    values["bn1.running_mean"] -= (weight * (255 * mean - 127) / 128).sum((1, 2, 3))
    values["conv_stem.weight"] = weight * 255 * std / 128
    return values
