"""Features of photographs as inputs of hams: images of a folder, and the maps that ResNet-50 makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from hamburger.backbones.create import create_backbone
from hamburger.training.image_files import normalise, read_image


def read_images(folder: Path, count: int, seed: int, side: int) -> Tensor:
    """Return `count` images of the folder, resized and normalised.   ->   b 3 h w"""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    images = [read_image(path).float() for path in random.Random(seed).sample(files, count)]
    resized = [torch.nn.functional.interpolate(each[None], (side, side), mode="bilinear") for each in images]
    return normalise(torch.cat(resized))


def read_features(images: Tensor, pretrained: Path | None, seed: int) -> Iterator[list[Tensor]]:
    """Yield, image by image, the maps of all stages of ResNet-50 (plain stem, stride 8).   ->   1 d n each"""
    torch.manual_seed(seed)
    net = create_backbone("resnet50", output_stride=8, stem="plain", stride_in="1x1", pretrained=pretrained).eval()
    for image in images:
        with torch.no_grad():
            yield [each.flatten(2) for each in net(image[None])]
