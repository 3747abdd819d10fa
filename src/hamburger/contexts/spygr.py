"""Spatial-pyramid graph reasoning, SpyGR (Li, Yang, Zhao, Shen, Lin and Liu, CVPR 2020).

Rebuilt from the paper's equations and unofficial implementations, without their defects: details are uncertain, among
them the norm after the graph convolution, how the map is downsampled, and the number of scales.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import check_map, check_sizes, contexts, conv, conv_norm_relu, resize
from hamburger.tensors import full_precision, is_exporting, widen

EPS = 1e-6


class GraphReasoning(nn.Module):
    """One graph convolution over all pixels of a map, on a graph made from the map.   b c h w   ->   b c h w

    phi = ReLU(W_phi x)                    m x n    embedding of each pixel
    lam = sigmoid(W_lam mean_pixels(x))    m        weight of each embedding axis, in (0, 1)
    A   = phi^T diag(lam) phi              n x n    similarities, >= 0; never formed
    L   = I - D^-1/2 A D^-1/2              n x n    D holds the row sums of A
    out = ReLU(BN(Theta X L))              c x n
    """

    def __init__(self, channels: int, embedding: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(conv(channels, embedding, bias=False), nn.ReLU())
        self.weigh = nn.Linear(channels, embedding, bias=False)
        self.theta = conv_norm_relu(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        lam = torch.sigmoid(self.weigh(x.mean(dim=(2, 3))))
        y = apply_laplacian(x.flatten(2), self.phi(x).flatten(2), lam)
        return self.theta(y.unflatten(2, x.shape[2:]))


def apply_laplacian(x: Tensor, phi: Tensor, lam: Tensor) -> Tensor:
    """Return X L, computed from the factors of L in O(n).   x: b c n   phi: b m n   lam: b m   ->   b c n

    A pixel with phi = 0 has no neighbours, not even itself, and is returned unchanged.
    """
    x32, phi, lam = (widen(t) for t in (x, phi, lam[:, :, None]))
    # float32 under autocast: degrees are sums over all pixels
    with full_precision(x.device.type):
        degree = (phi * (lam * phi.sum(dim=2, keepdim=True))).sum(dim=1, keepdim=True)  # b 1 n
        p = phi * degree.clamp_min(EPS).rsqrt()
        return (x32 - (x32 @ p.mT) @ (lam * p)).to(x.dtype)


def pool_by_two(x: Tensor) -> Tensor:
    """Max-pool by 2, odd sizes rounded up: windows that cross the border use the pixels inside."""
    if is_exporting():  # torch.export cannot derive the sizes of ceil_mode
        return F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=float("-inf")), 2)
    return F.max_pool2d(x, 2, ceil_mode=True)


@contexts.register("spygr")
class SpyGR(nn.Module):
    """Graph reasoning on a pyramid of the map, each level with its own weights.   b c h w   ->   b c h w

        x_0 = x,   x_{s+1} = max-pool 2 of x_s
        out_s = GR_s(x_s) + resize(out_{s+1})          result: out_0 + x

    - `embedding`: the width m in which pixels are compared.
    - `scales`: levels of the pyramid. Odd sizes are rounded up when pooled.
    """

    def __init__(self, channels: int, *, embedding: int = 64, scales: int = 3) -> None:
        super().__init__()
        check_sizes("SpyGR", channels=channels, embedding=embedding, scales=scales)
        self.channels = channels
        self.levels = nn.ModuleList(GraphReasoning(channels, embedding) for _ in range(scales))

    def forward(self, x: Tensor) -> Tensor:
        check_map("SpyGR", x, self.channels)
        maps = [x]
        for _ in self.levels[1:]:
            maps.append(pool_by_two(maps[-1]))
        out, *finer = [level(y) for level, y in zip(self.levels, maps, strict=True)][::-1]
        for y in finer:
            out = y + resize(out, y)
        return x + out
