"""Hamformers: small vision transformers in which a context mixes the tokens, hams as well as attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts import create_context
from hamburger.contexts.efficient import EfficientAttention
from hamburger.contexts.pooling import AveragePooling
from hamburger.contexts.sa import SelfAttention
from hamburger.errors import OptionError, ShapeError, check_count, check_positive
from hamburger.hams.base import hams
from hamburger.layers.burger import Hamburger
from hamburger.tensors import is_exporting

# name of `create_classifier` -> defaults of its backbone_options, named as timm's ViTs name them
HAMFORMERS: dict[str, dict[str, Any]] = {
    "hamformer_tiny": {"patch_size": 4, "embed_dim": 192, "depth": 12, "mlp_ratio": 4},
    "hamformer_small": {"patch_size": 4, "embed_dim": 384, "depth": 12, "mlp_ratio": 4},
}
HEAD_WIDTH = 64  # channels of an attention head, as in ViT
INITIAL_STD = 0.02  # of ViT's weights, whose truncation at -2 and 2 changes nothing


class Hamformer(nn.Module):
    """A vision transformer whose tokens are mixed by any context.   b 3 h w   ->   logits b k

        X   = patches W + position                     c h/p w/p
        X  += mix(LN(X)),   X += MLP(LN(X))            `depth` blocks
        logits = W_k mean over positions of LN(X)

    Whatever the context: pre-norm blocks, GELU, a learned positional embedding, mean pooling, no class token. Networks
    differ in `mix` alone; where `context` is None, it and its norm are left out.
    `position` has one vector per patch of a square of `size` pixels; other images get it resized bilinearly.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        size: int,
        patch_size: int,
        embed_dim: int,
        depth: int,
        mlp_ratio: float,
        context: str | None,
        context_options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        for name, value in (("patch_size", patch_size), ("embed_dim", embed_dim), ("depth", depth), ("size", size)):
            check_count("hamformer", name, value, least=1)
        check_positive("hamformer", "mlp_ratio", mlp_ratio)
        if size % patch_size:
            raise OptionError(
                f"hamformer: patches of {patch_size} pixels do not divide size {size}; set "
                f"backbone_options.patch_size to a divisor"
            )
        self.patch_size = patch_size
        self.patches = nn.Conv2d(3, embed_dim, patch_size, stride=patch_size)
        self.position = nn.Parameter(torch.empty(1, embed_dim, size // patch_size, size // patch_size))
        hidden = max(1, round(mlp_ratio * embed_dim))
        self.blocks = nn.Sequential(*(Block(embed_dim, hidden, context, context_options) for _ in range(depth)))
        self.norm = ChannelNorm(embed_dim)
        self.head = linear(embed_dim, num_classes)
        nn.init.normal_(self.position, std=INITIAL_STD)

    def forward(self, images: Tensor) -> Tensor:
        if not is_exporting() and any(side % self.patch_size for side in images.shape[2:]):
            raise ShapeError(
                f"hamformer: images must be multiples of {self.patch_size} pixels, the patch size (got "
                f"{tuple(images.shape[2:])}); resize or crop them"
            )
        # channels last: norms and MLPs work along the channels
        x = self.patches(images).contiguous(memory_format=torch.channels_last)
        position: Tensor = self.position
        if is_exporting() or x.shape[2:] != position.shape[2:]:  # an exported graph must take any size
            position = F.interpolate(position, size=x.shape[2:], mode="bilinear")
        logits: Tensor = self.head(self.norm(self.blocks(x + position)).mean((2, 3)))
        return logits


class Block(nn.Module):
    """Mix the tokens, then transform each.   b c h w   ->   b c h w"""

    def __init__(self, channels: int, hidden: int, context: str | None, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.mixer = None if context is None else create_mixer(context, channels, options)
        self.mixer_norm = None if context is None else ChannelNorm(channels)
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(linear(channels, hidden), nn.GELU(), linear(hidden, channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.mixer is not None and self.mixer_norm is not None:
            x = x + mix(self.mixer, self.mixer_norm(x))
        return x + self.mlp(self.mlp_norm(x.movedim(1, -1))).movedim(-1, 1)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each position.   b c h w   ->   b c h w"""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def linear(in_channels: int, out_channels: int) -> nn.Linear:
    """Return a linear layer with the initial weights of ViT."""
    layer = nn.Linear(in_channels, out_channels)
    nn.init.normal_(layer.weight, std=INITIAL_STD)
    nn.init.zeros_(layer.bias)
    return layer


def create_mixer(context: str, channels: int, options: Mapping[str, Any]) -> nn.Module:
    """Return the context with the defaults of a transformer, where `options` give no other value.

    Attention gets one head per 64 channels. Hams get `norm="none"`: the layer norm before the mixer is the only norm.
    """
    defaults: dict[str, Any] = {}
    if context in ("sa", "efficient") and channels % HEAD_WIDTH == 0:
        defaults["heads"] = channels // HEAD_WIDTH
    if context in hams:
        defaults["norm"] = "none"
    return create_context(context, channels, **{**defaults, **options})


def mix(context: nn.Module, x: Tensor) -> Tensor:
    """Return what a context adds to x: its output without its own skip, as the block has one.   b c h w  ->  b c h w"""
    plain = isinstance(context, Hamburger) and context.version != "v2+"  # v2+ scales its skip
    if plain or isinstance(context, (SelfAttention, EfficientAttention, AveragePooling)):
        added: Tensor = context.context(x)  # type: ignore[operator]
        return added
    y: Tensor = context(x) - x
    return y
