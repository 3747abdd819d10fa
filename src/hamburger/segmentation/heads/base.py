"""The head interface and registry, and the modules that heads share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from hamburger.contexts.common import conv
from hamburger.errors import OptionError, ShapeError, check_count
from hamburger.layers.norm import Dropout2d
from hamburger.registry import Registry
from hamburger.segmentation.losses import cross_entropy


class HeadOutputs(NamedTuple):
    """`logits` (b k h' w'): the prediction.   `aux`: tensors that only the loss needs, empty in evaluation"""

    logits: Tensor
    aux: dict[str, Tensor]


class Head(nn.Module):
    """[b c_i h_i w_i, ...]   ->   HeadOutputs.

    The constructor takes `channels` (the widths of the backbone's maps from shallow to deep), `num_classes`, and
    options by keyword.
    """

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        raise NotImplementedError

    def loss(self, outputs: HeadOutputs, target: Tensor) -> dict[str, Tensor]:
        """Return weighted loss terms by name; training minimises their sum.   target: b h w, 255 where unlabelled"""
        return {"ce": cross_entropy(outputs.logits, target)}

    def counts(self, target: Tensor) -> dict[str, Tensor]:
        """Return how many elements each loss term averages over; terms not listed average over the labelled pixels.

        Gradient accumulation weights the terms of each micro-batch by these counts.
        """
        return {}


# of hamburger-lab: the other systems of the paper's Tables 4 and 5
LAB_HEADS = (
    *("apcnet", "cfnet", "danet", "dfn", "dmnet", "emanet", "encnet", "ocrnet", "pspnet", "sanet", "sgr", "spygr"),
)
# constructors take (channels, num_classes, **options)
heads: Registry[Head] = Registry("head", lab_names=LAB_HEADS)


def check_head(
    call: str, channels: Sequence[int], num_classes: int, *, maps: int, use: str, **counts: int
) -> tuple[int, ...]:
    """Return the widths of the maps as a tuple; raise if there are fewer than `maps`. `use` says what they are for.

    `counts` are options of the head that must be whole numbers above zero, as `num_classes` must.
    """
    for option, value in {"num_classes": num_classes, **counts}.items():
        check_count(call, option, value, least=1)
    if isinstance(channels, int) or not all(isinstance(c, int) for c in channels):
        raise OptionError(
            f"{call}: channels must be the widths of the backbone's maps, such as (256, 512) (got {channels!r})"
        )
    for c in channels:
        check_count(call, "each of the channels", c, least=1)
    if len(channels) < maps:
        raise OptionError(
            f"{call}: needs at least {maps} feature maps, {use} (got {len(channels)}, of widths {tuple(channels)}); "
            "choose a backbone with more stages"
        )
    return tuple(channels)


def check_features(call: str, features: Sequence[Tensor], channels: Sequence[int]) -> None:
    """Raise unless the maps are b c h w with the widths that the head was built for."""
    widths = tuple(x.shape[1] if x.dim() == 4 else None for x in features)
    if widths != tuple(channels):
        raise ShapeError(
            f"{call}: expected maps 'b c h w' of widths {tuple(channels)} (got "
            f"{[tuple(x.shape) for x in features]}); build the head with the channels of its backbone"
        )


class PixelClassifier(nn.Sequential):
    """Dropout of whole channels, then a linear map at every position.   b c h w   ->   b k h w"""

    def __init__(self, channels: int, num_classes: int, *, dropout: float) -> None:
        super().__init__(Dropout2d(dropout), conv(channels, num_classes, bias=True))


class Decoder(nn.Module):
    """A head up to its classifier, for libraries that bring their own.   [b c_i h_i w_i, ...]   ->   b `width` h w

    The head's dropout stays, unless `dropout=False`. It reads the last `maps` maps, by default all of them.
    """

    def __init__(self, head: Head, *, maps: int = 0, dropout: bool = True) -> None:
        super().__init__()
        self.head, self.maps = head, maps
        classifier: Any = head.classifier
        self.width: int = classifier[1].in_channels
        head.classifier = classifier[0] if dropout else nn.Identity()

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.head(features[-self.maps :]).logits
