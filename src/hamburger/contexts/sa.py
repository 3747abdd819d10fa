"""Self-attention over the positions of a map (Vaswani et al., "Attention is all you need", NeurIPS 2017).

Checked against the paper's formula, and against Table 3 of the Hamburger paper for its width: four bare 1 x 1
convolutions, none of them narrower than the input.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import attend_materialised, check_map, compute_attention_weights, contexts, conv
from hamburger.errors import OptionError, check_count, check_flag


@contexts.register("sa")
class SelfAttention(nn.Module):
    """Every position is renewed by a weighted mean over all positions.   b c h w   ->   b c h w

        Q, K, V = Wq X, Wk X, Wv X                 inner n each, cut into heads of d channels
        A       = softmax over keys of Qᵀ K / √d   n n, rows sum to 1
        Y       = X + Wo (V Aᵀ)

    - `heads`: one, as Table 3 has it. Flash kernels stop at 256 channels a head: at 512 in half precision two heads run
      several times faster, and in training one head is better materialised where memory allows.
    - `inner`: the width of queries, keys and values; by default the channels.
    - `materialise`: hold A, n x n, in memory as the paper's comparison did. The same values at O(n²) memory; without
      it they come from torch's fused attention.
    """

    def __init__(self, channels: int, *, heads: int = 1, inner: int | None = None, materialise: bool = False) -> None:
        super().__init__()
        inner = channels if inner is None else inner
        check_count("sa", "channels", channels, least=1)
        check_count("sa", "inner", inner, least=1)
        check_count("sa", "heads", heads, least=1)
        if inner % heads:
            raise OptionError(f"sa: {heads} heads do not divide the inner width {inner}; choose heads or inner to fit")
        check_flag("sa", "materialise", materialise)
        self.channels, self.heads, self.materialise = channels, heads, materialise
        self.queries = conv(channels, inner, bias=False)
        self.keys = conv(channels, inner, bias=False)
        self.values = conv(channels, inner, bias=False)
        self.out = conv(inner, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        check_map("sa", x, self.channels)
        queries, keys, values = (self.split(layer(x)) for layer in (self.queries, self.keys, self.values))
        if self.materialise:
            y = attend_materialised(queries, keys, values, scale=queries.shape[-1] ** -0.5)
        else:
            y = F.scaled_dot_product_attention(queries, keys, values)
        y = y.transpose(1, 2).flatten(2).mT.unflatten(2, x.shape[2:])
        return x + self.out(y)

    def attention(self, x: Tensor) -> Tensor:
        """A, which `forward` holds only where it is told to.   b c h w   ->   b heads n n"""
        queries, keys = (self.split(layer(x)) for layer in (self.queries, self.keys))
        return compute_attention_weights(queries, keys, scale=queries.shape[-1] ** -0.5)

    def split(self, x: Tensor) -> Tensor:
        """b c h w   ->   b heads n d, each d contiguous in memory: the fused kernels refuse anything else."""
        return x.flatten(2).mT.contiguous().unflatten(2, (self.heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, materialise={self.materialise}"
