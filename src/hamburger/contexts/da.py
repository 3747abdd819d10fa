"""Dual attention (Fu et al., "Dual attention network for scene segmentation", CVPR 2019).

Checked against the authors' code, which differs from the paper in the channel branch: see `ChannelAttention`.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import (
    check_map,
    check_sizes,
    compute_attention_weights,
    contexts,
    conv,
    conv_norm_relu,
)
from hamburger.errors import check_choice, check_flag
from hamburger.tensors import HALF, full_precision, widen

ConvPlaces = Literal["in", "out", "both"]


def attend_fused(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Unscaled softmax attention without its n x n matrix.   b n d, b n d, b n c   ->   b n c

    Flash kernels need values as wide as queries, and half precision. For them the values are split into pieces of d
    channels under the same weights: the scores are computed c/d times, and this is still faster than the kernel that
    takes a wide head, above all in training. In float32 that kernel is faster. On a CPU torch has no kernel for values
    wider than queries and stores the scores, which is faster there.
    """
    pieces = values.shape[2] // queries.shape[2]
    if values.dtype not in HALF or pieces * queries.shape[2] != values.shape[2]:
        pieces = 1
    q, k = (t.unsqueeze(1).expand(-1, pieces, -1, -1) for t in (queries, keys))
    v = values.unflatten(2, (pieces, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2)


class PositionAttention(nn.Module):
    """PAM: attention over positions, unscaled, behind a gate that starts at zero.   b c h w   ->   b c h w

        Q, K: inner n    V: c n    A = softmax over keys of Qᵀ K, n n    Y = X + gate V Aᵀ

    `materialise` stores A in memory as the original does, in float32: unscaled scores overflow half precision. Without
    it torch's fused attention gives the same values.
    """

    def __init__(self, channels: int, *, inner: int, materialise: bool = False) -> None:
        super().__init__()
        self.materialise = materialise
        self.queries = conv(channels, inner, bias=True)
        self.keys = conv(channels, inner, bias=True)
        self.values = conv(channels, channels, bias=True)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (layer(x).flatten(2) for layer in (self.queries, self.keys, self.values))
        if self.materialise:
            y = values @ compute_attention_weights(queries.mT, keys.mT, scale=1).to(values.dtype).mT
        else:
            y = attend_fused(*(t.mT.contiguous() for t in (queries, keys, values))).mT
        return self.gate * y.unflatten(2, x.shape[2:]) + x

    def attention(self, x: Tensor) -> Tensor:
        """Return A, which `forward` computes only with `materialise`.   b c h w   ->   b 1 n n"""
        queries, keys = (layer(x).flatten(2) for layer in (self.queries, self.keys))
        return compute_attention_weights(queries.mT, keys.mT, scale=1).unsqueeze(1)


class ChannelAttention(nn.Module):
    """CAM: attention over channels, without weights, behind a gate that starts at zero.   b c h w   ->   b c h w

        E = X Xᵀ, c c    A = softmax over columns of -E (the authors' code) or E (their paper)    Y = X + gate A X

    The code takes the softmax of max(E) - E of every row, which equals that of -E: the least similar channels get the
    largest weights. `invert=False` is the paper's formula, where the most similar do.
    """

    def __init__(self, *, invert: bool = True) -> None:
        super().__init__()
        self.invert = invert
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(2)
        with full_precision(x.device.type):  # sums of n squares exceed the range and precision of half
            gram = widen(rows) @ widen(rows).mT
            attention = (-gram if self.invert else gram).softmax(dim=-1)
        y = attention.to(rows.dtype) @ rows
        return self.gate * y.unflatten(2, x.shape[2:]) + x


@contexts.register("da")
class DualAttention(nn.Module):
    """The sum of a position branch and a channel branch.   b c h w   ->   b c h w

        Y = PAM(CBR(X)) + CAM(CBR(X)),  each CBR a 3 x 3 convolution of its own with batch norm and ReLU

    - `convs`: a convolution before the attention ("in"), after it ("out"), or "both", as in DANet's head. Table 3 of
      the Hamburger paper counts one per branch.
    - `inner`: the width of PAM's queries and keys, by default channels / 8 (64 in an independent implementation).
    - `cam_invert`: the authors' code (True) or their paper (False).
    - `materialise`: store PAM's n x n matrix in memory, as the original does.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        cam_invert: bool = True,
        convs: ConvPlaces = "in",
        materialise: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("da", channels=channels)
        inner = max(1, channels // 8) if inner is None else inner
        check_sizes("da", inner=inner)
        check_choice("da", "convs", convs, get_args(ConvPlaces))
        check_flag("da", "cam_invert", cam_invert)
        check_flag("da", "materialise", materialise)
        self.channels = channels

        def branch(attention: nn.Module) -> nn.Sequential:
            before = conv_norm_relu(channels, channels, 3) if convs in ("in", "both") else nn.Identity()
            after = conv_norm_relu(channels, channels, 3) if convs in ("out", "both") else nn.Identity()
            return nn.Sequential(before, attention, after)

        self.position = branch(PositionAttention(channels, inner=inner, materialise=materialise))
        self.channel = branch(ChannelAttention(invert=cam_invert))

    def forward(self, x: Tensor) -> Tensor:
        check_map("da", x, self.channels)
        return self.position(x) + self.channel(x)
