"""A whole network by the names of its parts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from hamburger.backbones import create_backbone
from hamburger.errors import OptionError, check_count
from hamburger.heads import base  # importing the package registers its heads
from hamburger.models.segmenter import Segmenter
from hamburger.registry import options_of

DEFAULT_CONTEXT = "nmf"
models = base.heads  # a model is named by its head


def create_model(
    name: str = "hamnet",
    *,
    num_classes: int,
    backbone: str = "resnet50",
    output_stride: int = 16,
    context: str | nn.Module | None = DEFAULT_CONTEXT,
    context_options: Mapping[str, Any] | None = None,
    backbone_options: Mapping[str, Any] | None = None,
    head_options: Mapping[str, Any] | None = None,
    pretrained: str | os.PathLike[str] | None = None,
) -> Segmenter:
    """b 3 h w   ->   logits b k h w, for any h and w.

    >>> net = create_model("hamnet", backbone="resnet50", num_classes=21, context="nmf")

    - `name`: a head: "hamnet", "lightham", or one of the full systems such as "pspnet"
    - `backbone`, `output_stride`, `backbone_options`: those of `create_backbone`; `timm:<name>` is any encoder of timm
    - `context`, `context_options`: what stands in HamNet's head: a name of the zoo, a ready module, or None for the
      paper's baseline. Heads that are whole systems have their own context and take neither.
    - `head_options`: further options of the head
    - `pretrained`: weights for the backbone: a file, or "timm" to download them
    """
    call = f"create_model('{name}')"
    constructor = models[name]
    check_count(call, "num_classes", num_classes, least=1)
    options = _mapping(call, "head_options", head_options)
    for option in ("context", "context_options"):
        if option in options:
            raise OptionError(f"{call}: give {option} itself, not inside head_options")
    given = _mapping(call, "context_options", context_options)
    if "context" in options_of(constructor):
        options |= {"context": context, "context_options": given}
    elif given or context not in (None, DEFAULT_CONTEXT):
        raise OptionError(
            f"{call}: this head has its own context and takes neither context nor context_options; leave them out, "
            f"or put the context into 'hamnet'"
        )
    encoder = create_backbone(
        backbone,
        output_stride=output_stride,
        pretrained=pretrained,
        **_mapping(call, "backbone_options", backbone_options),
    )
    config = {
        "name": name,
        "num_classes": num_classes,
        "backbone": backbone,
        "output_stride": output_stride,
        "context": {"module": type(context).__name__} if isinstance(context, nn.Module) else context,
        "context_options": plain(given),
        "backbone_options": plain(backbone_options or {}),
        "head_options": plain(head_options or {}),
    }
    head = models.create(name, encoder.channels, num_classes, **options)
    return Segmenter(encoder, head, num_classes=num_classes, config=config)


def plain(value: Any) -> Any:
    """As JSON has it: lists for tuples and sets; what JSON cannot hold stays, and is refused when it is saved."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _mapping(call: str, option: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise OptionError(f"{call}: {option} must be a mapping such as {{'rank': 64}}, got {value!r}")
    return dict(value or {})
