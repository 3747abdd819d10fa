"""Two heads that reason along a graph. No source was found for their auxiliary losses.

- SGR (Liang, Hu, Zhang, Lin and Xing, "Symbolic graph reasoning meets convolutions", NeurIPS 2018): rebuilt from the
  paper's equations, as others report them, and one independent implementation. Uncertain: biases, norms and the
  first convolution. The paper's nodes are the concepts of its data sets, with word vectors and a knowledge graph. Here
  they are the classes, with random embeddings and learned edges, unless given.
- SpyGR (Li, Yang, Zhao, Shen, Lin and Liu, "Spatial pyramid based graph reasoning", CVPR 2020): rebuilt from the
  paper's equations and unofficial implementations. Uncertain: the norm after the graph convolution, how the map is
  downsampled, the number of scales, and the layers between pyramid and classifier.

CBRk: a k x k convolution, batch norm, ReLU; CBR is CBR1.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hamburger.contexts.common import conv_norm_relu
from hamburger.contexts.sgr import SGR, Adjacency, Mapping
from hamburger.contexts.spygr import SpyGR
from hamburger.segmentation.heads.base import PixelClassifier, heads
from hamburger_lab.heads.base import AuxiliaryHead


@heads.register("sgr")
class SGRNet(AuxiliaryHead):
    """Pixels vote for classes, classes reason along a graph.   [..., b c h w]   ->   logits b k h w

        logits = W dropout(SGR(CBR3(x)))                 c -> `width` -> k

    `nodes` is the number of symbols, by default the rows of `embeddings` or `adjacency` if given, else `num_classes`.
    `mapping`, `embeddings`, `adjacency` and `seed` are options of the unit, `hamburger.contexts.sgr`. Its default is
    not the published mapping, which sends every pixel the same vector.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 256,
        nodes: int | None = None,
        mapping: Mapping = "vote",
        embeddings: Tensor | None = None,
        adjacency: Adjacency | Tensor = "learnable",
        seed: int = 0,
        dropout: float = 0.1,
        aux_weight: float = 0.0,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        if nodes is None and embeddings is None and not isinstance(adjacency, Tensor):
            nodes = num_classes
        self.reason = nn.Sequential(
            conv_norm_relu(self.channels[-1], width, 3),
            SGR(width, nodes=nodes, mapping=mapping, embeddings=embeddings, adjacency=adjacency, seed=seed),
        )
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.reason(x), {}


@heads.register("spygr")
class SpyGRNet(AuxiliaryHead):
    """Graph reasoning on a pyramid of the reduced map.   [..., b c h w]   ->   logits b k h w

        logits = W dropout(SpyGR(CBR3(x)))               c -> `width` -> k

    `embedding` and `scales` are options of the unit, `hamburger.contexts.spygr`.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        embedding: int = 64,
        scales: int = 3,
        dropout: float = 0.1,
        aux_weight: float = 0.0,
        aux_width: int = 256,
    ) -> None:
        super().__init__(channels, num_classes, dropout, aux_weight, aux_width, width=width)
        self.reason = nn.Sequential(
            conv_norm_relu(self.channels[-1], width, 3), SpyGR(width, embedding=embedding, scales=scales)
        )
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)

    def decode(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.reason(x), {}
