"""A backbone by name."""

from __future__ import annotations

import os
from typing import Any

from hamburger.backbones.base import Backbone, backbones
from hamburger.backbones.resnet import ResNet
from hamburger.backbones.timm_encoder import PREFIX, TimmBackbone, load_timm_state
from hamburger.backbones.weights import load_backbone, load_backbone_state
from hamburger.errors import OptionError, UnknownNameError

DOWNLOAD = "timm"


def create_backbone(
    name: str,
    *,
    output_stride: int = 16,
    pretrained: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Backbone:
    """A registered encoder, or `timm:<name>` for any of timm's.

    `pretrained` is the path of a file of weights, or "timm" to download them. How the loading went is kept as
    `backbone.report`, and is a warning where something did not fit.
    """
    if not isinstance(name, str):
        raise OptionError(f"create_backbone: the name must be a string such as 'resnet50', got {name!r}")
    download = pretrained == DOWNLOAD
    if name.startswith(PREFIX):
        backbone: Backbone = TimmBackbone(
            name.removeprefix(PREFIX), output_stride=output_stride, pretrained=download, **options
        )
    else:
        try:
            backbone = backbones.create(name, output_stride=output_stride, **options)
        except UnknownNameError as error:
            raise UnknownNameError(f"{error}, and {PREFIX}<name> for any encoder of timm") from None
        if download:
            if not isinstance(backbone, ResNet):
                raise OptionError(f"pretrained='timm': timm has no weights for '{name}'; leave pretrained out")
            source, state = load_timm_state(name, stem=backbone.stem, stride_in=backbone.stride_in)
            backbone.report = load_backbone_state(backbone, state, source=f"{PREFIX}{source}")
    if pretrained is not None and not download:
        backbone.report = load_backbone(backbone, pretrained)
    return backbone
