"""The non-local block (Wang, Girshick, Gupta and He, "Non-local neural networks", CVPR 2018).

Checked against the authors' settings and an independent implementation. They differ from the paper in one place: both
divide the embedded Gaussian's scores by √d, which the paper's formula does not.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hamburger.contexts.common import attend, check_map, check_sizes, compute_attention_weights, contexts, conv
from hamburger.errors import OptionError, check_choice, check_flag
from hamburger.layers.norm import BatchNorm2d

Mode = Literal["embedded_gaussian", "gaussian", "dot_product", "concatenation"]
MODES = get_args(Mode)
GAUSSIANS = ("embedded_gaussian", "gaussian")
OutputNorm = Literal["batch", "none"]


@contexts.register("nonlocal")
class NonLocal(nn.Module):
    """A sum over all positions j, weighted by a pairwise function of both.   b c h w   ->   b c h w

        Q, K, V = Wq X, Wk X, Wv X, with biases                          d n, d m, d m
        Y = X + norm(Wo (V Aᵀ)),  A: n m
        mode "embedded_gaussian"   A = softmax over keys of Qᵀ K / √d
             "gaussian"            A = softmax over keys of Xᵀ X         no Wq, no Wk
             "dot_product"         A = Qᵀ K / m
             "concatenation"       A_ij = ReLU(wq · q_i + wk · k_j) / m

    - `inner`: the paper's d, by default half of the channels. In "gaussian" only the values have it.
    - `scale`: divide by √d, the default of "embedded_gaussian"; False is the paper's formula. The others have none.
    - `pool`: max-pool keys and values by 2, so m = n / 4. Odd rows and columns are rounded up, so all positions count.
    - `norm`: "batch", with its weight initialised to zero, or "none", where Wo is zero instead: the layer starts as the
      identity in both. As in that implementation, Wo has a bias only without a norm.
    - `materialise`: store the n x m weights of the two Gaussian modes; the values are the same.

    Without it, an n x m matrix is stored only in "concatenation" and, on a CPU, in "gaussian". "dot_product" is
    associative and costs O(n d²).
    """

    def __init__(
        self,
        channels: int,
        *,
        mode: Mode = "embedded_gaussian",
        inner: int | None = None,
        scale: bool | None = None,
        pool: bool = False,
        norm: OutputNorm = "batch",
        materialise: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("nonlocal", channels=channels)
        inner = max(1, channels // 2) if inner is None else inner
        check_sizes("nonlocal", inner=inner)
        check_choice("nonlocal", "mode", mode, MODES)
        check_choice("nonlocal", "norm", norm, get_args(OutputNorm))
        check_flag("nonlocal", "pool", pool)
        check_flag("nonlocal", "materialise", materialise)
        if scale is not None:
            check_flag("nonlocal", "scale", scale)
        if scale is not None and mode != "embedded_gaussian":
            raise OptionError(f"nonlocal: scale belongs to mode='embedded_gaussian', got mode='{mode}'")
        if materialise and mode not in GAUSSIANS:
            raise OptionError(f"nonlocal: materialise belongs to the softmax modes {GAUSSIANS}, got mode='{mode}'")
        self.channels, self.mode, self.materialise = channels, mode, materialise
        self.scale = inner**-0.5 if mode == "embedded_gaussian" and scale is not False else 1.0
        self.values = conv(channels, inner, bias=True)
        embedded = mode != "gaussian"
        self.queries = conv(channels, inner, bias=True) if embedded else nn.Identity()
        self.keys = conv(channels, inner, bias=True) if embedded else nn.Identity()
        if mode == "concatenation":  # w · [q; k] is the sum of two products: no pair is ever concatenated
            self.query_score = conv(inner, 1, bias=False)
            self.key_score = conv(inner, 1, bias=False)
        self.pool = nn.MaxPool2d(2, ceil_mode=True) if pool else nn.Identity()
        self.out = conv(inner, channels, bias=norm == "none")
        self.norm = BatchNorm2d(channels) if norm == "batch" else nn.Identity()
        for layer in (self.queries, self.keys, self.values, self.out):
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.01)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.norm.weight if isinstance(self.norm, BatchNorm2d) else self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        check_map("nonlocal", x, self.channels)
        y = self.mix(*self.pairs(x), self.pool(self.values(x)).flatten(2))
        return x + self.norm(self.out(y.unflatten(2, x.shape[2:])))

    def attention(self, x: Tensor) -> Tensor:
        """Return A, which `forward` computes only where it must.   b c h w   ->   b 1 n m"""
        queries, keys = self.pairs(x)
        if self.mode in GAUSSIANS:
            return compute_attention_weights(queries.mT, keys.mT, scale=self.scale).unsqueeze(1)
        scores = queries.mT @ keys if self.mode == "dot_product" else torch.relu(queries.mT + keys)
        return scores.unsqueeze(1) / keys.shape[-1]

    def pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the pairwise function.   b c h w   ->   b d n, b d m, with d = 1 in "concatenation"."""
        queries, keys = self.queries(x), self.pool(self.keys(x))
        if self.mode == "concatenation":
            queries, keys = self.query_score(queries), self.key_score(keys)
        return queries.flatten(2), keys.flatten(2)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the weighted sums of values.   b d n, b d m, b e m   ->   b e n"""
        if self.mode in GAUSSIANS:
            # the fused kernels need contiguous rows and an axis for heads
            q, k, v = (t.mT.contiguous().unsqueeze(1) for t in (queries, keys, values))
            return attend(q, k, v, scale=self.scale, materialise=self.materialise).squeeze(1).mT
        # 1/√m on each side: in half precision sums over m do not overflow, and 1/m does not underflow
        root = keys.shape[-1] ** 0.5
        if self.mode == "dot_product":
            return (values @ (keys / root).mT) @ (queries / root)
        scores = torch.relu(queries.mT + keys)  # b n m
        return (values / root) @ (scores / root).mT
