"""Bases of heads: several losses, and an auxiliary FCN head on the second-deepest map."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from hamburger.contexts.common import conv_norm_relu
from hamburger.errors import check_positive
from hamburger.segmentation.heads.base import Head, HeadOutputs, PixelClassifier, check_features, check_head
from hamburger.segmentation.losses import cross_entropy
from hamburger_lab.heads.losses import find_labelled_images, presence_loss


class FCNHead(nn.Sequential):
    """3 x 3 convolution, batch norm, ReLU, classifier.   b c h w   ->   b k h w"""

    def __init__(self, channels: int, width: int, num_classes: int, *, dropout: float) -> None:
        super().__init__(conv_norm_relu(channels, width, 3), PixelClassifier(width, num_classes, dropout=dropout))


LossFunction = Callable[[Tensor, Tensor], Tensor]  # (auxiliary output, target b h w) -> loss


class MultiLossHead(Head):
    """Base of heads with several losses; `terms` maps names in `HeadOutputs.aux` to their weight and loss."""

    terms: dict[str, tuple[float, LossFunction]]

    def loss(self, outputs: HeadOutputs, target: Tensor) -> dict[str, Tensor]:
        losses = super().loss(outputs, target)
        for name, value in outputs.aux.items():
            if name in self.terms:
                weight, loss = self.terms[name]
                losses[name] = weight * loss(value, target)
        return losses

    def counts(self, target: Tensor) -> dict[str, Tensor]:
        presence = [name for name, (_, loss) in self.terms.items() if loss is presence_loss]
        return {name: find_labelled_images(target).sum() for name in presence}


class AuxiliaryHead(MultiLossHead):
    """Base of heads that decode the deepest map, with an auxiliary FCN head on the one before.

    [..., b c' h' w', b c h w]   ->   HeadOutputs, with logits b k h w

    The loss is the cross-entropy "ce", plus `aux_weight` times that of the FCN head, "aux"; aux_weight=0 removes the
    FCN head, so that one map is enough. A subclass sets `classifier`, computes its input in `decode`, and may add to
    `terms`. `counts` are its options that must be whole numbers above zero.
    """

    classifier: nn.Module

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
