"""The Hamburger heads, both checked against their authors' code.

- HamNet (Geng et al., ICLR 2021, section 3.1), with any context in place of the Hamburger
- LightHam, the decoder of SegNeXt (Guo, Lu, Hou, Liu, Cheng and Hu, NeurIPS 2022), for pyramid encoders;
  `hamburger.contexts.lightham` has everything except dropout and classifier
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hamburger.contexts import create_context, with_authors_version
from hamburger.contexts.common import conv_norm_relu
from hamburger.contexts.lightham import LightHam as Unit
from hamburger.errors import OptionError, check_count
from hamburger.hams.decompose import Gradient, GradientName
from hamburger.segmentation.heads.base import Head, HeadOutputs, PixelClassifier, check_features, check_head, heads


@heads.register("hamnet")
class HamNet(Head):
    """[..., b c h w]   ->   logits b k h w

        z = CBR3(x)                                      b `width` h w; CBR3: 3 x 3 convolution, batch norm, ReLU
        y = context(z)                                   b `width` h w
        logits = W dropout(CBR3(y)) + bias               `width` -> `width` / 2 -> k

    - `context`: the name of a context, built with `context_options`; a module b c h w -> b c h w; or None for the
      paper's baseline. A Hamburger by name is the authors' (`version="v1"`) unless `context_options` say otherwise.
    - `dropout`: the share of channels dropped before the classifier in training.

    The 3 x 3 convolutions are initialised from N(0, 2 / (9 out)), the classifier with torch's default.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        context: str | nn.Module | None = "nmf",
        context_options: Mapping[str, Any] | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_count("HamNet", "width", width, least=2)
        self.channels = check_head("HamNet", channels, num_classes, maps=1, use="the deepest to decode")
        self.squeeze = conv_norm_relu(self.channels[-1], width, 3)
        self.context = make_context(context, width, context_options or {})
        self.align = conv_norm_relu(width, width // 2, 3)
        self.classifier = PixelClassifier(width // 2, num_classes, dropout=dropout)
        for module in (*self.squeeze, *self.align):
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 / (9 * module.out_channels)))

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features("HamNet", features, self.channels)
        y = self.context(self.squeeze(features[-1]))
        return HeadOutputs(self.classifier(self.align(y)), {})


def make_context(context: str | nn.Module | None, channels: int, options: Mapping[str, Any]) -> nn.Module:
    """Return the module between the two convolutions: an identity, a context by name, or the given module."""
    if isinstance(context, str):
        return create_context(context, channels, **with_authors_version(context, options))
    if options:
        description = "no context" if context is None else f"a {type(context).__name__} instance"
        raise OptionError(
            f"HamNet: context_options {sorted(options)} need a context by name (got {description}); omit them"
        )
    if context is None:
        return nn.Identity()
    if not isinstance(context, nn.Module):
        raise OptionError(f"HamNet: context must be a name, a torch module or None (got {context!r})")
    return context


@heads.register("lightham")
class LightHamHead(Head):
    """[..., b c_1 h w, b c_2 h/2 w/2, b c_3 h/4 w/4]   ->   logits b k h w

    The last `maps` maps are resized to the first of them and concatenated, then

        logits = W dropout(unit(maps)) + bias            c_1 + c_2 + c_3 -> `inner` -> `width` -> k

    - `width`, `inner`: 256 for the small encoders of the paper, 512 and 1024 for its larger ones; `inner` is `width` by
      default.
    - `rank`, `steps`, `eval_steps`, `grad`, `groups`, `seed`: options of the unit; by default its gradient is
      back-propagation through all steps, as published.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 256,
        inner: int | None = None,
        maps: int = 3,
        dropout: float = 0.1,
        rank: int | None = None,
        steps: int = 6,
        eval_steps: int = 7,
        grad: GradientName | Gradient = "bptt",
        groups: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_count("LightHam", "maps", maps, least=1)
        self.channels = check_head("LightHam", channels, num_classes, maps=maps, use="which it concatenates")
        self.maps = maps
        self.decoder = Unit(
            width,
            inner=inner,
            in_channels=self.channels[-maps:],
            rank=rank,
            steps=steps,
            eval_steps=eval_steps,
            grad=grad,
            groups=groups,
            seed=seed,
        )
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features("LightHam", features, self.channels)
        return HeadOutputs(self.classifier(self.decoder(features[-self.maps :])), {})
