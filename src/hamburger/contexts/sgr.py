"""Symbolic graph reasoning, SGR (Liang, Hu, Zhang, Lin and Xing, NeurIPS 2018).

Rebuilt from the paper's equations as others report them and one independent implementation: details are uncertain,
among them biases, norms and the number of nodes, which in the paper are the concepts of a data set.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import check_map, check_sizes, contexts, conv, softmax_float32
from hamburger.errors import OptionError, check_choice, check_count, check_seed
from hamburger.tensors import full_precision, widen

Mapping = Literal["paper", "vote"]
Adjacency = Literal["identity", "learnable"]
WORDS = 300  # the width of fastText vectors


@contexts.register("sgr")
class SGR(nn.Module):
    """Pixels vote for graph nodes, a graph convolution mixes nodes, pixels read them.   b c h w   ->   b c h w

        vote     a = softmax_over_nodes(W_a x)                             m x n
                 V = ReLU(a X^T W_ps)                                      m x d
        reason   G = Q^-1/2 (A + I) Q^-1/2,   Q the row sums of A + I      m x m
                 H = ReLU(G [V, S] W_g)                                    m x d      S: words, m x 300
        map      out = x + ReLU((b^T H W_sp)^T)                            b: m x n

    - `mapping`: "vote" takes b = a. "paper" takes the published b = softmax_over_pixels(w . [H_m; x_i]), divided by its
      sum over nodes. That score is the sum of a node term and a pixel term. The softmax cancels the first and the
      division the second: every weight is 1 / m, every pixel gets the same vector, and w gets no gradient.
    - `embeddings`: S, one row per node; by default random unit vectors, fixed by `seed` and saved with the weights.
    - `adjacency`: A as a non-negative m x m tensor, "learnable" (symmetric, in (0, 1), initialised to 1 / m), or
      "identity": no edges between nodes.
    - `nodes`: m, if neither tensor determines it; 64 by default, the library's choice.
    - `inner`: the width d, by default the channels, as in the paper.
    """

    embeddings: Tensor

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        nodes: int | None = None,
        mapping: Mapping = "vote",
        embeddings: Tensor | None = None,
        adjacency: Adjacency | Tensor = "learnable",
        seed: int = 0,
    ) -> None:
        super().__init__()
        inner = channels if inner is None else inner
        check_sizes("SGR", channels=channels, inner=inner)
        check_choice("SGR", "mapping", mapping, get_args(Mapping))
        check_seed("SGR", seed)
        if embeddings is not None and not isinstance(embeddings, Tensor):
            raise OptionError(
                f"SGR: embeddings must be a tensor, one row per node, got {type(embeddings).__name__}; "
                "make one with torch.tensor(...)"
            )
        edges = adjacency if isinstance(adjacency, Tensor) else None
        nodes = next((len(t) for t in (embeddings, edges) if t is not None), 64) if nodes is None else nodes
        check_count("SGR", "nodes", nodes, least=1)
        if embeddings is None:
            words = torch.randn(nodes, WORDS, generator=torch.Generator().manual_seed(seed))
            embeddings = F.normalize(words, dim=1)
        if embeddings.dim() != 2 or len(embeddings) != nodes:
            raise OptionError(f"SGR: embeddings must have one row for each of {nodes} nodes, got {embeddings.shape}")
        if edges is not None and (edges.shape != (nodes, nodes) or not (edges >= 0).all()):
            raise OptionError(f"SGR: adjacency must be non-negative and {nodes} x {nodes}, got {tuple(edges.shape)}")

        self.channels, self.mapping = channels, mapping
        self.register_buffer("embeddings", embeddings.detach().clone().to(torch.get_default_dtype()))
        self.vote = conv(channels, nodes, bias=False)
        self.gather = nn.Linear(channels, inner, bias=False)
        self.reason = nn.Linear(inner + embeddings.shape[1], inner, bias=False)
        self.scatter = nn.Linear(inner, channels, bias=False)
        self.score = nn.Linear(inner + channels, 1, bias=False) if mapping == "paper" else None
        if edges is not None:
            self.register_buffer("edges", edges.detach().clone().to(torch.get_default_dtype()))
        else:
            check_choice("SGR", "adjacency", adjacency, get_args(Adjacency))
            # its sigmoid is 1 / m: all neighbours together start with about the weight of the node itself
            start = torch.full((nodes, nodes), -math.log(max(nodes - 1, 1)))
            self.edges = nn.Parameter(start) if adjacency == "learnable" else None

    def graph(self) -> Tensor:
        """Return the normalised adjacency Q^-1/2 (A + I) Q^-1/2.   ->   m m"""
        eye = torch.eye(len(self.embeddings), dtype=self.embeddings.dtype, device=self.embeddings.device)
        if self.edges is None:
            return eye
        learnable = isinstance(self.edges, nn.Parameter)
        adjacency = eye + (torch.sigmoid((self.edges + self.edges.mT) / 2) if learnable else self.edges)
        scale = adjacency.sum(dim=1).rsqrt()
        return scale[:, None] * adjacency * scale

    def forward(self, x: Tensor) -> Tensor:
        check_map("SGR", x, self.channels)
        votes = softmax_float32(self.vote(x).flatten(2), dim=1)  # b m n
        flat = widen(x.flatten(2))  # sums over all pixels overflow float16
        with full_precision(x.device.type):
            y = self._reason(flat, votes.to(flat.dtype))
        return x + torch.relu(y).unflatten(2, x.shape[2:]).to(x.dtype)

    def _reason(self, flat: Tensor, votes: Tensor) -> Tensor:
        """Return what the nodes add to each pixel.   flat: b c n   votes: b m n   ->   b c n"""
        # products are associative, so all linear layers run on m nodes, not on n pixels
        v = torch.relu(apply_linear(self.gather, votes @ flat.mT))  # b m d
        words = self.embeddings.to(flat.dtype).expand(v.shape[0], -1, -1)
        h = torch.relu(self.graph().to(flat.dtype) @ apply_linear(self.reason, torch.cat([v, words], dim=2)))
        if self.score is None:
            weights = votes
        else:
            of_node, of_pixel = self.score.weight.to(flat.dtype).split([h.shape[2], flat.shape[1]], dim=1)
            scores = h @ of_node.mT + of_pixel @ flat  # b m n
            # softmax over pixels, divided by its sum over nodes; in logarithms, since small weights underflow to 0 / 0
            weights = scores.log_softmax(dim=2).softmax(dim=1)
        return apply_linear(self.scatter, h).mT @ weights


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply the layer in the precision of x."""
    return F.linear(x, layer.weight.to(x.dtype))
