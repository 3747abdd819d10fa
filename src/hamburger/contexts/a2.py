"""Double attention (Chen, Kalantidis, Li, Yan and Feng, "A²-Nets: Double attention networks", NeurIPS 2018).

Checked against the paper's formula and independent implementations; where the batch norms are is uncertain (see
`norm`). One of them omits the residual, and the axes of its softmaxes, so that torch takes the batch axis.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from hamburger.contexts.common import check_map, check_sizes, contexts, conv, softmax_float32
from hamburger.errors import check_choice
from hamburger.layers.norm import BatchNorm2d

NormPlaces = Literal["all", "out", "none"]
NORMS = get_args(NormPlaces)


@contexts.register("a2")
class DoubleAttention(nn.Module):
    """Gather k descriptors of the whole map, then mix them for each position.   b c h w   ->   b c h w

        A, B, V = Wa X, Wb X, Wv X                      m n, k n, k n
        G = A softmax over pixels of B, transposed      m k      gather
        Z = G softmax over k of V                       m n      distribute
        Y = X + Wr Z

    It is one head of efficient attention with values A, keys B and queries V. O(n (m + k) c), nothing is n x n.

    - `inner`: m, the width of what is gathered. `maps`: k, how many descriptors. Both are the channels by default, as
      Table 3 of the Hamburger paper needs; the A² paper works narrower, at about a quarter.
    - `norm`: batch norm after every convolution ("all"), after the last ("out"), or nowhere ("none"). Four of them make
      the 1.01M parameters that Table 3 prints; the A² paper's residual use shows the last alone.
    """

    def __init__(
        self, channels: int, *, inner: int | None = None, maps: int | None = None, norm: NormPlaces = "all"
    ) -> None:
        super().__init__()
        inner = channels if inner is None else inner
        maps = channels if maps is None else maps
        check_sizes("a2", channels=channels, inner=inner, maps=maps)
        check_choice("a2", "norm", norm, NORMS)
        self.channels = channels

        def linear(in_channels: int, out_channels: int, normed: bool) -> nn.Sequential:
            layer = conv(in_channels, out_channels, bias=True)
            return nn.Sequential(layer, BatchNorm2d(out_channels) if normed else nn.Identity())

        self.features = linear(channels, inner, norm == "all")
        self.gather = linear(channels, maps, norm == "all")
        self.distribute = linear(channels, maps, norm == "all")
        self.out = linear(inner, channels, norm != "none")

    def forward(self, x: Tensor) -> Tensor:
        check_map("a2", x, self.channels)
        features = self.features(x).flatten(2)
        over_pixels = softmax_float32(self.gather(x).flatten(2), dim=2)
        over_maps = softmax_float32(self.distribute(x).flatten(2), dim=1)
        descriptors = features @ over_pixels.mT  # b m k
        y = descriptors @ over_maps
        return x + self.out(y.unflatten(2, x.shape[2:]))
