"""External attention (Guo, Liu, Mu and Hu, "Beyond self-attention: External attention using two linear layers for
visual tasks", TPAMI 2022; first published in 2021).

Checked against the authors' code.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_map, check_sizes, contexts, conv, conv_norm_relu
from hamburger.errors import check_choice
from hamburger.tensors import widen

AttentionNorm = Literal["double", "softmax"]
EPS = 1e-9


@contexts.register("external")
class ExternalAttention(nn.Module):
    """Attention to r learned slots, shared by all images, instead of to pixels.   b c h w   ->   b c h w

        F = W X + bias                                c n
        A = softmax over pixels of Mk F, then each column divided by (its sum + 1e-9)      r n
        Y = ReLU(X + BN(Wo Mv A))                     Mk: r c, Mv: c r

    Cost O(n c r), linear in n. Only the softmax over pixels moves information between positions.

    - `slots`: r, the paper's S.
    - `norm`: "double", both normalisations, or "softmax" over the slots alone, as in plain attention; positions are
      then independent of each other.
    """

    def __init__(self, channels: int, *, slots: int = 64, norm: AttentionNorm = "double") -> None:
        super().__init__()
        check_sizes("external", channels=channels, slots=slots)
        check_choice("external", "norm", norm, get_args(AttentionNorm))
        self.channels = channels
        self.normalisation = norm
        self.lower = conv(channels, channels, bias=True)
        self.keys = conv(channels, slots, bias=False)
        self.values = conv(slots, channels, bias=False)
        self.upper = conv_norm_relu(channels, channels, relu=False)
        # as in the authors' code: weights from N(0, 2 / out), and the keys start as the transposed values
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.out_channels))
        with torch.no_grad():
            self.keys.weight.copy_(self.values.weight.transpose(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        check_map("external", x, self.channels)
        scores = self.keys(self.lower(x)).flatten(2)  # b r n
        y = self.values(self.normalise(scores).unflatten(2, x.shape[2:]))
        return torch.relu(x + self.upper(y))

    def normalise(self, scores: Tensor) -> Tensor:
        # in float32: between the two steps the weights are about 1/n, and 1e-9 is zero in half precision
        wide = widen(scores)
        if self.normalisation == "softmax":
            return wide.softmax(dim=1).to(scores.dtype)
        weights = wide.softmax(dim=2)
        return (weights / (weights.sum(dim=1, keepdim=True) + EPS)).to(scores.dtype)
