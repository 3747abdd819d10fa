"""Efficient, first called decomposed, attention (Shen, Zhang, Zhao, Yi and Li, "Efficient attention: Attention with
linear complexities", WACV 2021).

Checked against the authors' code and their post on decomposed attention.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from hamburger.contexts.common import check_map, check_sizes, contexts, conv, softmax_float32
from hamburger.errors import OptionError, check_choice

AttentionNorm = Literal["softmax", "scale_sqrt_k", "scale_n"]
NORMS = get_args(AttentionNorm)


@contexts.register("efficient")
class EfficientAttention(nn.Module):
    """Attention with its two products swapped: keys meet values before they meet queries.   b c h w   ->   b c h w

        Q, K, V = Wq X, Wk X, Wv X, with biases       d n, d n, e n for every head
        norm "softmax"        Y = X + Wo (V Kₛᵀ) Qₛ   Kₛ: softmax over pixels, Qₛ: softmax over the head's channels
             "scale_sqrt_k"   Y = X + Wo (V Kᵀ / √d) Q
             "scale_n"        Y = X + Wo (V Kᵀ / n) Q

    With a scale it equals the quadratic attention of the same scale. The authors' post takes √d, their paper n; with
    √d values grow with n and overflow float16 on large maps. With softmax it approximates softmax attention: the
    implied n x n matrix Qₛᵀ Kₛ is not softmax(Qᵀ K), but is non-negative with rows that sum to 1. Both cost O(n d e)
    per head, and the only intermediate matrix is d x e.

    - `heads` split keys and values alike.
    - `key_channels`, `value_channels`: the widths over all heads; by default the channels.
    """

    def __init__(
        self,
        channels: int,
        *,
        norm: AttentionNorm = "softmax",
        heads: int = 1,
        key_channels: int | None = None,
        value_channels: int | None = None,
    ) -> None:
        super().__init__()
        key_channels = channels if key_channels is None else key_channels
        value_channels = channels if value_channels is None else value_channels
        widths = {"key_channels": key_channels, "value_channels": value_channels}
        check_sizes("efficient", channels=channels, heads=heads, **widths)
        check_choice("efficient", "norm", norm, NORMS)
        for option, width in widths.items():
            if width % heads:
                raise OptionError(f"efficient: {heads} heads do not divide {option}={width}; choose either to fit")
        self.channels, self.norm, self.heads = channels, norm, heads
        self.queries = conv(channels, key_channels, bias=True)
        self.keys = conv(channels, key_channels, bias=True)
        self.values = conv(channels, value_channels, bias=True)
        self.out = conv(value_channels, channels, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.context(x)

    def context(self, x: Tensor) -> Tensor:
        """Apply the layer without its skip.   b c h w   ->   b c h w"""
        check_map("efficient", x, self.channels)
        queries, keys, values = (
            layer(x).flatten(2).unflatten(1, (self.heads, -1)) for layer in (self.queries, self.keys, self.values)
        )  # b heads d n
        if self.norm == "softmax":
            queries, keys = softmax_float32(queries, dim=2), softmax_float32(keys, dim=3)
        elif self.norm == "scale_sqrt_k":  # before the product, which could overflow half precision
            keys = keys / keys.shape[2] ** 0.5
        else:  # 1/√n before the product: it does not overflow half precision, and 1/n would underflow
            keys = keys / keys.shape[3] ** 0.5
        context = values @ keys.mT  # b heads e d
        if self.norm == "scale_n":  # the other 1/√n, on the smaller matrix: d x e, not d x n
            context = context / keys.shape[3] ** 0.5
        y = (context @ queries).flatten(1, 2)
        return self.out(y.unflatten(2, x.shape[2:]))
