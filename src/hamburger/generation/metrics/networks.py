"""The Inception network that FID is defined by, made from torchvision's."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.inception import (
    BasicConv2d,
    Inception3,
    InceptionA,
    InceptionAux,
    InceptionB,
    InceptionC,
    InceptionD,
    InceptionE,
)


def _average_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def _max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 1, 1)


class FidPooling:
    """Replaces the last branch of a block, which pools, by one with the pooling of the network of 2015."""

    pool: Callable[[Tensor], Tensor] = staticmethod(_average_pool)
    branch_pool: nn.Module
    _forward: Callable[[Tensor], list[Tensor]]

    def forward(self, x: Tensor) -> Tensor:
        *branches, _ = self._forward(x)
        return torch.cat([*branches, self.branch_pool(self.pool(x))], 1)


class FidInceptionA(FidPooling, InceptionA):  # type: ignore[misc] # torchvision has no types
    pass


class FidInceptionC(FidPooling, InceptionC):  # type: ignore[misc]
    pass


class FidInceptionE(FidPooling, InceptionE):  # type: ignore[misc]
    pass


class FidInception(Inception3):  # type: ignore[misc]
    """The network of 2015-12-05 that FID is defined by; pooled features.   b 3 299 299, in [0, 1]    ->    b 2048

    Three differences from torchvision's `inception_v3` are needed for the same features: average pooling excludes the
    padding; the last block pools by maximum; there are 1008 classes and no auxiliary classifier.

    Bytes are scaled to [-1, 1] as in the package pytorch-fid, x / 127.5 - 1. The original graph, and the package
    torch-fidelity, compute (x - 128) / 128 instead; apart from that the network here is torch-fidelity's.
    """

    def __init__(self) -> None:
        blocks = [BasicConv2d, FidInceptionA, InceptionB, FidInceptionC, InceptionD, FidInceptionE, InceptionAux]
        super().__init__(num_classes=1008, aux_logits=False, inception_blocks=blocks, init_weights=False)
        self.Mixed_7c.pool = _max_pool

    def forward(self, x: Tensor) -> Tensor:
        x = 2 * x - 1
        for layer in list(self.children())[:-3]:  # without pooling, dropout and classifier
            x = layer(x)
        return x.mean((2, 3))
