"""SAGAN (Zhang et al., "Self-attention generative adversarial networks", ICML 2019), as in TF-GAN."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hamburger.contexts.common import attend_materialised
from hamburger.errors import OptionError
from hamburger.generation.networks.context import GatedContext, gan_contexts
from hamburger.generation.networks.layers import GanStyle, LayerFactory, gan_styles


@gan_contexts.register("sagan")
class SelfAttention(GatedContext):
    """Unscaled attention of all positions to max-pooled keys.   b c h w   ->   b c h w

        Q: c/8 n    K: c/8 n/4    V: c/2 n/4    A = softmax over keys of Qᵀ K    f(x) = W_o V Aᵀ

    It has 5 c²/4 weights and the gate. Scores are float32: without a scale they overflow half precision.
    """

    def __init__(self, channels: int, *, size: int, layers: LayerFactory, num_classes: int | None = None) -> None:
        super().__init__()
        check_widths("sagan", channels, size, heads=1)
        self.queries = layers.pointwise(channels, channels // 8)
        self.keys = layers.pointwise(channels, channels // 8)
        self.values = layers.pointwise(channels, channels // 2)
        self.out = layers.pointwise(channels // 2, channels)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        queries = self.queries(x).flatten(2)
        keys, values = (F.max_pool2d(layer(x), 2).flatten(2) for layer in (self.keys, self.values))
        mixed = attend_materialised(queries.mT, keys.mT, values.mT, scale=1.0).mT
        out: Tensor = self.out(mixed.unflatten(2, x.shape[2:]))
        return out


def check_widths(name: str, channels: int, size: int, *, heads: int) -> None:
    """Raise unless an eighth of the channels divides into the heads and the map size is even."""
    if channels % (8 * heads):
        raise OptionError(
            f"create_gan with context '{name}': {heads} heads of an eighth of the channels need a multiple of "
            f"{8 * heads} channels, got {channels}; change width, the multipliers or context_at"
        )
    if size % 2:
        raise OptionError(f"create_gan with context '{name}': the map size must be even, got {size}; change context_at")


@gan_styles.register("sagan")
def sagan() -> GanStyle:
    return GanStyle(context="sagan")
