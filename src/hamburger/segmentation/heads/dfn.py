"""DFN (Yu, Wang, Peng, Gao, Yu and Sang, "Learning a discriminative feature network", CVPR 2018).

Both networks were checked against the authors' code. The border target is computed differently: see
`hamburger.segmentation.losses.find_borders`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamburger.contexts.common import conv, conv_norm_relu, resize
from hamburger.contexts.dfn import CAB, RRB
from hamburger.errors import check_positive
from hamburger.segmentation.heads.base import Head, HeadOutputs, check_features, check_head, heads
from hamburger.segmentation.losses import IGNORE, cross_entropy, find_borders, focal_loss

STAGES = (2, 3, 4, 5)  # the paper's numbers of the four maps


def make_scorer(width: int, outputs: int) -> nn.Sequential:
    """Return a refinement block of nine channels per output, then a linear map.   b c h w   ->   b outputs h w"""
    return nn.Sequential(RRB(width, 9 * outputs, relu=False), conv(9 * outputs, outputs, bias=True))


class SmoothNet(nn.Module):
    """Deep to shallow: each map gates the channels of the next.   [b c_i h_i w_i] * 4   ->   the same, c wide

    s = CBR(mean over positions of map 5);   for i = 5, 4, 3, 2:   s = RRB(CAB(RRB(map i), s resized to it))
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.whole = conv_norm_relu(channels[-1], width)
        self.before = nn.ModuleList(RRB(c, width) for c in channels)
        self.attention = nn.ModuleList(CAB(width) for _ in channels)
        self.after = nn.ModuleList(RRB(width, width) for _ in channels)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        y = self.whole(features[-1].mean((2, 3), keepdim=True))
        maps = []
        stages = list(zip(features, self.before, self.attention, self.after, strict=True))
        for depth, (x, before, attention, after) in enumerate(reversed(stages)):
            low = before(x)
            y = after(attention(low, resize(y, low) if depth else y))  # the mean is the same at every position
            maps.append(y)
        return maps[::-1]


class BorderNet(nn.Module):
    """Shallow to deep, at the size of the first map.   [b c_i h_i w_i] * 4   ->   [b width h_2 w_2] * 4

    t = RRB(map 2);   for i = 3, 4, 5:   t = RRB(t + RRB(map i) resized)
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.before = nn.ModuleList(RRB(c, width) for c in channels)
        self.after = nn.ModuleList(RRB(width, width) for _ in channels[1:])

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        first, *rest = (before(x) for before, x in zip(self.before, features, strict=True))
        maps = [first]
        for y, after in zip(rest, self.after, strict=True):
            maps.append(after(maps[-1] + resize(y, first)))
        return maps


@heads.register("dfn")
class DFNHead(Head):
    """A smooth network for regions and a border network for their boundaries.   four maps   ->   logits b k h_2 w_2

    Each stage of each network has its own scorer, with k channels in the smooth network and one in the border network.
    The prediction comes from the shallowest stage of the smooth network. The border network and the scorers of deeper
    stages run in training only; their losses shape the backbone's features.

    - `width`, `border_width`: channels of the two networks
    - `border_weight`: weight of the border loss; 0 removes the border network
    - `radius`: how far from another class a pixel still counts as border

    Loss: cross-entropy "ce" of the prediction; "smooth", the sum of the cross-entropies of the other three stages; and
    "border", 0.1 times the sum of four focal losses (gamma 2, alpha 0.25).
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 512,
        border_width: int = 21,
        border_weight: float = 0.1,
        radius: int = 3,
    ) -> None:
        super().__init__()
        use = "one for each of its stages, shallow to deep"
        counts = {"width": width, "border_width": border_width, "radius": radius}
        self.channels = check_head("DFN", channels, num_classes, maps=len(STAGES), use=use, **counts)
        check_positive("DFN", "border_weight", border_weight, zero=True)
        self.border_weight, self.radius = border_weight, radius
        used = self.channels[-len(STAGES) :]
        self.smooth = SmoothNet(used, width)
        self.smooth_scorers = nn.ModuleList(make_scorer(width, num_classes) for _ in STAGES)
        self.border = BorderNet(used, border_width) if border_weight else None
        self.border_scorers = nn.ModuleList(make_scorer(border_width, 1) for _ in STAGES if border_weight)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features("DFN", features, self.channels)
        used = features[-len(STAGES) :]
        maps = self.smooth(used)
        logits = self.smooth_scorers[0](maps[0])
        aux: dict[str, Tensor] = {}
        if self.training:
            deeper = zip(STAGES[1:], self.smooth_scorers[1:], maps[1:], strict=True)
            aux |= {f"smooth{stage}": score(y) for stage, score, y in deeper}
        if self.training and self.border is not None:
            edges = zip(STAGES, self.border_scorers, self.border(used), strict=True)
            aux |= {f"border{stage}": score(y) for stage, score, y in edges}
        return HeadOutputs(logits, aux)

    def loss(self, outputs: HeadOutputs, target: Tensor) -> dict[str, Tensor]:
        terms = super().loss(outputs, target)
        smooth = [cross_entropy(y, target) for name, y in outputs.aux.items() if name.startswith("smooth")]
        if smooth:
            terms["smooth"] = torch.stack(smooth).sum()
        edges = [y for name, y in outputs.aux.items() if name.startswith("border")]
        if edges:
            border = find_borders(target, radius=self.radius)
            terms["border"] = self.border_weight * torch.stack([focal_loss(y, border) for y in edges]).sum()
        return terms

    def counts(self, target: Tensor) -> dict[str, Tensor]:
        return {"border": (find_borders(target, radius=self.radius) != IGNORE).sum()}
