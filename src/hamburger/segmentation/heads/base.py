"""The head interface and registry, and the parts that heads share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from hamburger.contexts.common import conv, conv_norm_relu
from hamburger.errors import OptionError, ShapeError, check_count, check_positive
from hamburger.layers.norm import Dropout2d
from hamburger.registry import Registry
from hamburger.segmentation.losses import cross_entropy


class HeadOutputs(NamedTuple):
    """`logits` (b k h' w') are the prediction; `aux` is what only the loss needs, empty in evaluation."""

    logits: Tensor
    aux: dict[str, Tensor]


class Head(nn.Module):
    """[b c_i h_i w_i, ...]   ->   Outputs.

    The constructor takes `channels`, the widths of the backbone's maps from shallow to deep, `num_classes`, and options
    by keyword.
    """

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        raise NotImplementedError

    def loss(self, outputs: HeadOutputs, target: Tensor) -> dict[str, Tensor]:
        """Terms by name, already weighted: training minimises their sum.   target: b h w, 255 where unlabelled"""
        return {"ce": cross_entropy(outputs.logits, target)}

    def counts(self, target: Tensor) -> dict[str, Tensor]:
        """How many things a term averages over, for terms whose things are not the labelled pixels.

        Where a batch is trained on in parts, this is what each part's term weighs.
        """
        return {}


# constructors take (channels, num_classes, **options)
heads: Registry[Head] = Registry("head")


# ----------------------------------------------------------------------------------------------------------------------
# What a head asks of the maps of a backbone.


def check_channels(call: str, channels: Sequence[int], *, least: int, use: str) -> tuple[int, ...]:
    """The widths of the maps, shallow to deep; at least so many, where `use` says what for."""
    if isinstance(channels, int) or not all(isinstance(c, int) for c in channels):
        raise OptionError(
            f"{call}: channels must be the widths of the backbone's maps, as (256, 512), got {channels!r}"
        )
    for c in channels:
        check_count(call, "each of the channels", c, least=1)
    if len(channels) < least:
        raise OptionError(
            f"{call}: needs at least {least} feature maps, {use}; got {len(channels)}, of widths {tuple(channels)}; "
            "choose a backbone that gives more stages"
        )
    return tuple(channels)


def check_features(call: str, features: Sequence[Tensor], channels: Sequence[int]) -> None:
    """Maps b c h w of the widths that the head was built for."""
    widths = tuple(x.shape[1] if x.dim() == 4 else None for x in features)
    if widths != tuple(channels):
        raise ShapeError(
            f"{call}: built for maps 'b c h w' of widths {tuple(channels)}, got "
            f"{[tuple(x.shape) for x in features]}; build it with the channels of the backbone that feeds it"
        )


# ----------------------------------------------------------------------------------------------------------------------
# The small heads that others share: a linear classifier, and the FCN head on an earlier map.


class PixelClassifier(nn.Sequential):
    """Dropout of whole channels, then a linear map at every position.   b c h w   ->   b k h w"""

    def __init__(self, channels: int, num_classes: int, *, dropout: float) -> None:
        super().__init__(Dropout2d(dropout), conv(channels, num_classes, bias=True))


class FCNHead(nn.Sequential):
    """3 x 3 convolution, batch norm, ReLU, classifier.   b c h w   ->   b k h w"""

    def __init__(self, channels: int, width: int, num_classes: int, *, dropout: float) -> None:
        super().__init__(conv_norm_relu(channels, width, 3), PixelClassifier(width, num_classes, dropout=dropout))


# ----------------------------------------------------------------------------------------------------------------------
# What most heads share: they decode the deepest map, and an FCN head on the map before it is trained beside them.


LossFunction = Callable[[Tensor, Tensor], Tensor]  # of what a head gave, and the target b h w


class AuxiliaryHead(Head):
    """[..., b c' h' w', b c h w]   ->   Outputs, with logits b k h w.

    A head sets `classifier` and says in `decode` what comes before it. Each name in `aux` has its weight and its loss
    in `terms`. `aux_weight=0` leaves out the FCN head, and with it the need for a second map.
    """

    classifier: nn.Module

    def __init__(
        self, channels: Sequence[int], num_classes: int, *, aux_weight: float, aux_width: int, dropout: float
    ) -> None:
        super().__init__()
        self.call = type(self).__name__
        check_positive(self.call, "aux_weight", aux_weight, zero=True)
        check_count(self.call, "num_classes", num_classes, least=1)
        check_count(self.call, "aux_width", aux_width, least=1)
        use = "the deepest to decode, the one before it for the auxiliary loss (aux_weight=0 does without)"
        self.channels = check_channels(self.call, channels, least=2 if aux_weight else 1, use=use)
        self.terms: dict[str, tuple[float, LossFunction]] = {"aux": (aux_weight, cross_entropy)}
        self.auxiliary = FCNHead(self.channels[-2], aux_width, num_classes, dropout=dropout) if aux_weight else None

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The deepest map, ready for the classifier; in training also what only the loss needs, by names of `terms`."""
        raise NotImplementedError

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features(self.call, features, self.channels)
        y, aux = self.decode(features[-1])
        logits = self.classifier(y)
        if self.training and self.auxiliary is not None:
            aux["aux"] = self.auxiliary(features[-2])
        return HeadOutputs(logits, aux)

    def loss(self, outputs: HeadOutputs, target: Tensor) -> dict[str, Tensor]:
        terms = super().loss(outputs, target)
        for name, value in outputs.aux.items():
            weight, measure = self.terms[name]
            terms[name] = weight * measure(value, target)
        return terms
