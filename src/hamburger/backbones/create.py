"""Create a backbone by name, with pretrained weights."""

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
    """Return a registered backbone, or any timm encoder as `timm:<name>`.

    `pretrained` is the path of a weights file, or "timm" to download the weights. `backbone.report` says what was
    loaded; entries that do not fit also raise a warning.
    """
    if not isinstance(name, str):
        raise OptionError(f"create_backbone: the name must be a string such as 'resnet50' (got {name!r})")
    download = pretrained == DOWNLOAD
    if name.startswith(PREFIX):
        backbone: Backbone = TimmBackbone(
            name.removeprefix(PREFIX), output_stride=output_stride, pretrained=download, **options
        )
    else:
        try:
            backbone = backbones.create(name, output_stride=output_stride, **options)
        except UnknownNameError as error:
            raise UnknownNameError(f"{error}, and {PREFIX}<name> for any timm encoder") from None
        if download:
            if not isinstance(backbone, ResNet):
                raise OptionError(
                    f"create_backbone: timm has no weights for '{name}' (got pretrained='timm'); omit pretrained"
                )
            source, state = load_timm_state(name, stem=backbone.stem, stride_in=backbone.stride_in)
            backbone.report = load_backbone_state(backbone, state, source=f"{PREFIX}{source}")
    if pretrained is not None and not download:
        backbone.report = load_backbone(backbone, pretrained)
    return backbone
