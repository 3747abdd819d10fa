"""Aggregated co-occurrent features: CFNet (Zhang, Zhang, Wang, Xie, CVPR 2019).

Layers, widths, temperature and initialisation were checked against the authors' code. Two things differ on purpose:
n/4 is the real size of the pooled map, so odd sizes work, and the attention is fused, so no n x n matrix is stored.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import (
    attend,
    check_dropout,
    check_map,
    check_sizes,
    contexts,
    conv,
    conv_norm_relu,
    softmax_float32,
)
from hamburger.errors import OptionError, check_choice, check_flag
from hamburger.layers.norm import BatchNorm2d

Transform = Literal["conv", "ffn"]


@contexts.register("acf")
class ACF(nn.Module):
    """Attention from every position to a pooled map, its weights a mixture of softmaxes.   b c h w   ->   b c h w

        q = T x,  k = T pool(x),  v = W_v pool(x)             one T for both; pool: 3 x 3 mean, stride 2
        A = Σ_j π_j softmax_over_keys(q_jᵀ k_j / √d_k)        n x n/4, per head; j runs over `mixtures` slices of d_k
        π = softmax_over_mixtures(W_m mean_over_positions(q)) only where there are several
        out = x + BN(W_o v Aᵀ)

    The width of a head is c/heads for values and d_k = mixtures * c/heads for queries; this whole d_k sets the
    temperature. The mixture is linear in the values, so it is taken over the outputs of fused attentions: memory grows
    with n (in training on a CPU torch stores the scores, because of the dropout), work with n²/4, and the product with
    the values is computed once per mixture. Table 3 has one head and one mixture; the authors' default is eight heads.

    - `transform`: "conv", a linear T, or "ffn": 3 x 3 convolution, BN, ReLU and then a linear map.
    - `pool`: False attends to every position.
    - `dropout`: of attention weights, in training.
    - `materialise`: store the weights, n x n/4, as the authors do; the values are the same.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int = 1,
        mixtures: int = 1,
        transform: Transform = "conv",
        pool: bool = True,
        dropout: float = 0.1,
        materialise: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("ACF", channels=channels, heads=heads, mixtures=mixtures)
        check_choice("ACF", "transform", transform, get_args(Transform))
        check_dropout("ACF", dropout)
        check_flag("ACF", "pool", pool)
        check_flag("ACF", "materialise", materialise)
        if channels % heads:
            raise OptionError(f"ACF: {heads} heads do not divide the channels {channels}; choose a divisor")
        self.channels = channels
        self.heads, self.mixtures, self.dropout, self.materialise = heads, mixtures, dropout, materialise
        self.value_width = channels // heads
        self.key_width = mixtures * self.value_width
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False) if pool else nn.Identity()

        keys = heads * self.key_width
        last = conv(channels if transform == "conv" else keys, keys, bias=True)
        self.query_key: nn.Module = last
        if transform == "ffn":
            self.query_key = nn.Sequential(conv_norm_relu(channels, keys, 3), last)
        self.value = conv(channels, channels, bias=True)
        self.out = conv(channels, channels, bias=False)
        self.norm = BatchNorm2d(channels)
        nn.init.normal_(
            last.weight,
            std=math.sqrt(2 / (channels + self.key_width)) if transform == "conv" else math.sqrt(1 / self.key_width),
        )
        nn.init.normal_(self.value.weight, std=math.sqrt(2 / (channels + self.value_width)))
        if mixtures > 1:
            bound = mixtures**-0.5
            self.mixing = nn.Parameter(torch.empty(mixtures, self.key_width).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        check_map("ACF", x, self.channels)
        pooled = self.pool(x)
        query, key = self.query_key(x).flatten(2), self.query_key(pooled).flatten(2)
        value = self.value(pooled).flatten(2).unflatten(1, (self.heads, 1, -1))
        value = value.expand(-1, -1, self.mixtures, -1, -1).flatten(1, 2)  # b (heads mixtures) d n/4
        slices = self.heads * self.mixtures
        # contiguous: a fused kernel refuses a transposed head, and torch then silently stores all scores
        q, k, v = (t.mT.contiguous() for t in (query.unflatten(1, (slices, -1)), key.unflatten(1, (slices, -1)), value))
        dropout, scale = self.dropout if self.training else 0.0, self.key_width**-0.5
        y = attend(q, k, v, scale=scale, dropout=dropout, materialise=self.materialise).mT
        if self.mixtures > 1:
            weights = self.mixture_weights(query)[..., None, None]  # b heads mixtures 1 1
            y = (y.unflatten(1, (self.heads, self.mixtures)) * weights).sum(2)
        return x + self.norm(self.out(y.flatten(1, 2).unflatten(2, x.shape[2:])))

    def mixture_weights(self, query: Tensor) -> Tensor:
        """Return the paper's π, one mixture per head and image.   b (heads d_k) n   ->   b heads mixtures"""
        mean = query.mean(2).unflatten(1, (self.heads, self.key_width))
        return softmax_float32(F.linear(mean, self.mixing), dim=2)
