"""Heads and contexts of this library in configs of mmsegmentation.

    custom_imports = dict(imports=["hamburger.mmseg"])
    model = dict(
        backbone=dict(
            plugins=[
                dict(
                    cfg=dict(type="HamburgerContext", context="efficient"),
                    stages=(False, False, True, True),
                    position="after_conv3",
                )
            ],
        ),
        decode_head=dict(
            type="HamburgerHead", head="hamnet", in_channels=2048, in_index=3, channels=512, num_classes=19
        ),
    )

`HamburgerContext` is a plugin layer, which backbones of mmdetection and mmpretrain also take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hamburger.contexts import create_context
from hamburger.errors import check_choice
from hamburger.segmentation.heads import base

try:
    from mmengine.registry import MODELS as ROOT
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead
    from mmseg.registry import MODELS
except ImportError as missing:
    raise ImportError(
        f"hamburger.mmseg: needs mmsegmentation and mmcv ({missing}); install them as their documentation says"
    ) from missing

__all__ = ["HamburgerContext", "HamburgerHead"]

HEADS = ("hamnet", "lightham")


@MODELS.register_module()
class HamburgerHead(BaseDecodeHead):
    """HamNet or LightHam as a decode head of mmsegmentation.   [b c_i h_i w_i, ...]   ->   b k h w

    - `head`: "hamnet", which reads one map, or "lightham", which reads several from shallow to deep.
    - `in_channels`, `in_index`: of one map, or a list of each for several.
    - `channels`: the width of the head. HamNet halves it before its classifier, as the authors' code does.
    - `head_options`: further options of the head of that name in `hb.create_model`, such as `context`.

    Other keywords are those of mmsegmentation's heads: `num_classes`, `loss_decode`, `dropout_ratio`, `sampler`, ...
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        channels: int = 512,
        *,
        num_classes: int,
        head: str = "hamnet",
        head_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_choice("HamburgerHead", "head", head, HEADS)
        one_map = isinstance(in_channels, int)
        widths = (in_channels,) if isinstance(in_channels, int) else tuple(in_channels)
        built = base.heads.create(head, widths, num_classes, width=channels, **(head_options or {}))
        decoder = base.Decoder(built, dropout=False)  # mmsegmentation drops channels and classifies
        transform = None if one_map else "multiple_select"
        super().__init__(in_channels, decoder.width, num_classes=num_classes, input_transform=transform, **options)
        self.decoder = decoder

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        selected = self._transform_inputs(inputs)
        logits: Tensor = self.cls_seg(self.decoder([selected] if isinstance(selected, Tensor) else selected))
        return logits


@ROOT.register_module()  # mmengine's own registry: the registries of all its libraries find it there
class HamburgerContext(nn.Module):
    """A context by name as a plugin of a backbone.   b c h w   ->   b c h w

    Options other than `context` are those of `hb.create_context`.
    """

    _abbr_ = "hamburger_context"

    def __init__(self, in_channels: int, context: str = "nmf", **options: Any) -> None:
        super().__init__()
        self.context = create_context(context, in_channels, **options)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.context(x)
        return y
