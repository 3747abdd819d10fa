"""What most heads share: they decode the deepest map, and an FCN head on the map before it is trained beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from hamburger.errors import check_count, check_positive
from hamburger.heads.auxiliary import FCN
from hamburger.heads.base import Head, Outputs
from hamburger.heads.maps import check_channels, check_features
from hamburger.losses.cross_entropy import cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]  # of what a head gave, and the target b h w


class Supervised(Head):
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
        self.terms: dict[str, tuple[float, Loss]] = {"aux": (aux_weight, cross_entropy)}
        self.auxiliary = FCN(self.channels[-2], aux_width, num_classes, dropout=dropout) if aux_weight else None

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The deepest map, ready for the classifier; in training also what only the loss needs, by names of `terms`."""
        raise NotImplementedError

    def forward(self, features: Sequence[Tensor]) -> Outputs:
        check_features(self.call, features, self.channels)
        y, aux = self.decode(features[-1])
        logits = self.classifier(y)
        if self.training and self.auxiliary is not None:
            aux["aux"] = self.auxiliary(features[-2])
        return Outputs(logits, aux)

    def loss(self, outputs: Outputs, target: Tensor) -> dict[str, Tensor]:
        terms = super().loss(outputs, target)
        for name, value in outputs.aux.items():
            weight, measure = self.terms[name]
            terms[name] = weight * measure(value, target)
        return terms
