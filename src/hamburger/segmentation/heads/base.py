"""The head interface and registry, and the modules that heads share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from hamburger.contexts.common import conv, conv_norm_relu
from hamburger.errors import OptionError, ShapeError, check_count, check_positive
from hamburger.layers.norm import Dropout2d
from hamburger.registry import Registry
from hamburger.segmentation.losses import cross_entropy, find_labelled_images, presence_loss


class HeadOutputs(NamedTuple):
    """`logits` (b k h' w'): the prediction.   `aux`: tensors that only the loss needs, empty in evaluation"""

    logits: Tensor
    aux: dict[str, Tensor]


LossFunction = Callable[[Tensor, Tensor], Tensor]  # (auxiliary output, target b h w) -> loss


class Head(nn.Module):
    """[b c_i h_i w_i, ...]   ->   HeadOutputs.

    The constructor takes `channels` (the widths of the backbone's maps from shallow to deep), `num_classes`, and
    options by keyword. `terms` maps names in `aux` to their weight and loss.
    """

    terms: Mapping[str, tuple[float, LossFunction]] = {}

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        raise NotImplementedError

    def loss(self, outputs: HeadOutputs, target: Tensor) -> dict[str, Tensor]:
        """Return weighted loss terms by name; training minimises their sum.   target: b h w, 255 where unlabelled"""
        losses = {"ce": cross_entropy(outputs.logits, target)}
        for name, value in outputs.aux.items():
            if name in self.terms:
                weight, loss = self.terms[name]
                losses[name] = weight * loss(value, target)
        return losses

    def counts(self, target: Tensor) -> dict[str, Tensor]:
        """Return how many elements each loss term averages over; terms not listed average over the labelled pixels.

        Gradient accumulation weights the terms of each micro-batch by these counts.
        """
        presence = [name for name, (_, loss) in self.terms.items() if loss is presence_loss]
        return {name: find_labelled_images(target).sum() for name in presence}


# constructors take (channels, num_classes, **options)
heads: Registry[Head] = Registry("head")


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


class FCNHead(nn.Sequential):
    """3 x 3 convolution, batch norm, ReLU, classifier.   b c h w   ->   b k h w"""

    def __init__(self, channels: int, width: int, num_classes: int, *, dropout: float) -> None:
        super().__init__(conv_norm_relu(channels, width, 3), PixelClassifier(width, num_classes, dropout=dropout))


class AuxiliaryHead(Head):
    """Base of heads that decode the deepest map, with an auxiliary FCN head on the one before.

    [..., b c' h' w', b c h w]   ->   HeadOutputs, with logits b k h w

    The loss is the cross-entropy "ce", plus `aux_weight` times that of the FCN head, "aux"; aux_weight=0 removes the
    FCN head, so that one map is enough. A subclass sets `classifier`, computes its input in `decode`, and may add to
    `terms`. `counts` are its options that must be whole numbers above zero.
    """

    classifier: nn.Module
    terms: dict[str, tuple[float, LossFunction]]

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        dropout: float,
        aux_weight: float,
        aux_width: int,
        **counts: int,
    ) -> None:
        super().__init__()
        self.call = type(self).__name__
        check_positive(self.call, "aux_weight", aux_weight, zero=True)
        use = "the deepest to decode, the one before it for the auxiliary loss (not needed with aux_weight=0)"
        maps = 2 if aux_weight else 1
        self.channels = check_head(self.call, channels, num_classes, maps=maps, use=use, aux_width=aux_width, **counts)
        self.terms = {"aux": (aux_weight, cross_entropy)}
        self.auxiliary = FCNHead(self.channels[-2], aux_width, num_classes, dropout=dropout) if aux_weight else None

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the classifier's input and, in training, tensors for the loss by their names in `terms`."""
        raise NotImplementedError

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features(self.call, features, self.channels)
        y, aux = self.decode(features[-1])
        logits = self.classifier(y)
        if self.training and self.auxiliary is not None:
            aux["aux"] = self.auxiliary(features[-2])
        return HeadOutputs(logits, aux)
