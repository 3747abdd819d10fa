"""Self-attention over the positions of a map (Vaswani et al., "Attention is all you need", NeurIPS 2017).

Checked against the paper's formula, and against Table 3 of the Hamburger paper for its width: four 1 x 1
convolutions without bias or norm, none narrower than the input.
"""

from __future__ import annotations

from torch import Tensor, nn

from hamburger.contexts.common import attend, check_map, check_sizes, compute_attention_weights, contexts, conv
from hamburger.errors import OptionError, check_flag


@contexts.register("sa")
class SelfAttention(nn.Module):
    """Add to every position a weighted mean over all positions.   b c h w   ->   b c h w

        Q, K, V = Wq X, Wk X, Wv X                 inner n each, split into heads of d channels
        A       = softmax over keys of Qᵀ K / √d   n n, rows sum to 1
        Y       = X + Wo (V Aᵀ)

    - `heads`: by default one, as in Table 3. Flash kernels take at most 256 channels per head: at 512 channels in half
      precision two heads are several times faster; with one head, materialise in training if memory allows.
    - `inner`: the width of queries, keys and values; by default the channels.
    - `materialise`: store A, n x n, as the Hamburger paper's comparison did: the values of torch's fused attention, at
      O(n²) memory.
    """

    def __init__(self, channels: int, *, heads: int = 1, inner: int | None = None, materialise: bool = False) -> None:
        super().__init__()
        inner = channels if inner is None else inner
        check_sizes("sa", channels=channels, inner=inner, heads=heads)
        if inner % heads:
            raise OptionError(f"sa: {heads} heads do not divide the inner width {inner}; choose heads or inner to fit")
        check_flag("sa", "materialise", materialise)
        self.channels, self.heads, self.materialise = channels, heads, materialise
        self.queries = conv(channels, inner, bias=False)
        self.keys = conv(channels, inner, bias=False)
        self.values = conv(channels, inner, bias=False)
        self.out = conv(inner, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.context(x)

    def context(self, x: Tensor) -> Tensor:
        """Apply the layer without its skip.   b c h w   ->   b c h w"""
        check_map("sa", x, self.channels)
        y = attend(
            *(self.split(layer(x)) for layer in (self.queries, self.keys, self.values)), materialise=self.materialise
        )
        y = y.transpose(1, 2).flatten(2).mT.unflatten(2, x.shape[2:])
        z: Tensor = self.out(y)
        return z

    def attention(self, x: Tensor) -> Tensor:
        """Return A, which `forward` computes only with `materialise`.   b c h w   ->   b heads n n"""
        queries, keys = (self.split(layer(x)) for layer in (self.queries, self.keys))
        return compute_attention_weights(queries, keys, scale=queries.shape[-1] ** -0.5)

    def split(self, x: Tensor) -> Tensor:
        """Split into heads, contiguous along d as the fused kernels require.   b c h w   ->   b heads n d"""
        return x.flatten(2).mT.contiguous().unflatten(2, (self.heads, -1)).transpose(1, 2)
