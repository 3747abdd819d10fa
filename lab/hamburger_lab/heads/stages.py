"""Two heads that decode four stages of the backbone.

- DFN (Yu, Wang, Peng, Gao, Yu and Sang, "Learning a discriminative feature network", CVPR 2018): both networks were
  checked against the authors' code. The border target is computed differently: see `heads/losses.py`.
- SANet (Zhong et al., "Squeeze-and-attention networks for semantic segmentation", CVPR 2020): rebuilt from the paper's
  formula and a community implementation of the block. Certain: the unit's formula, one unit on each of four stages,
  that their outputs are merged, and the weights of the three losses. Uncertain, and chosen here: the width of the
  units, how outputs are merged, which output each loss uses, and where the categories are predicted.

CBRk: a k x k convolution, batch norm, ReLU; CBR is CBR1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamburger.contexts.common import conv, conv_norm_relu, resize
from hamburger.contexts.dfn import CAB, RRB
from hamburger.contexts.sanet import SqueezeAttention, Upsampling
from hamburger.errors import check_positive
from hamburger.segmentation.heads.base import Head, HeadOutputs, PixelClassifier, check_features, check_head, heads
from hamburger.segmentation.losses import IGNORE, cross_entropy
from hamburger_lab.heads.base import MultiLossHead
from hamburger_lab.heads.losses import find_borders, focal_loss, presence_loss

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


@heads.register("sanet")
class SANetHead(MultiLossHead):
    """A squeeze-and-attention unit on each stage, merged.   four maps   ->   logits b k h_2 w_2

        y_i = SA(map i)                                  c_i -> `width`, for stages 2, 3, 4, 5
        logits = W dropout(CBR3((y_2, ..., y_5)))        resized to the size of y_2;  4 `width` -> `width` -> k
        masks: W_i dropout(y_i), each a map of logits;   categories: a linear map of the mean of y_5 over positions

    `squash` and `upsample` are options of the unit, `hamburger.contexts.sanet`.

    Loss, L_mask + 0.2 L_cat + 0.8 L_dense: "mask", the mean of the cross-entropies of the four masks; "cat", a binary
    cross-entropy per class on whether it is in the image; "dense", the cross-entropy of the prediction.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        *,
        width: int = 256,
        squash: bool = False,
        upsample: Upsampling = "bilinear",
        dropout: float = 0.1,
        cat_weight: float = 0.2,
        dense_weight: float = 0.8,
    ) -> None:
        super().__init__()
        use = "one for each of its squeeze-and-attention heads, shallow to deep"
        self.channels = check_head("SANet", channels, num_classes, maps=len(STAGES), use=use, width=width)
        check_positive("SANet", "cat_weight", cat_weight, zero=True)
        check_positive("SANet", "dense_weight", dense_weight)
        self.dense_weight, self.terms = dense_weight, {"cat": (cat_weight, presence_loss)}
        self.stages = nn.ModuleList(
            SqueezeAttention(c, width, squash=squash, upsample=upsample) for c in self.channels[-len(STAGES) :]
        )
        self.merge = conv_norm_relu(len(STAGES) * width, width, 3)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout)
        self.masks = nn.ModuleList(PixelClassifier(width, num_classes, dropout=dropout) for _ in STAGES)
        self.categories = nn.Linear(width, num_classes) if cat_weight else None

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        check_features("SANet", features, self.channels)
        maps = [stage(x) for stage, x in zip(self.stages, features[-len(STAGES) :], strict=True)]
        logits = self.classifier(self.merge(torch.cat([resize(y, maps[0]) for y in maps], dim=1)))
        aux: dict[str, Tensor] = {}
        if self.training:
            aux |= {f"mask{i}": mask(y) for i, mask, y in zip(STAGES, self.masks, maps, strict=True)}
        if self.training and self.categories is not None:
            aux["cat"] = self.categories(maps[-1].mean((2, 3)))
        return HeadOutputs(logits, aux)

    def loss(self, outputs: HeadOutputs, target: Tensor) -> dict[str, Tensor]:
        terms = {"dense": self.dense_weight * cross_entropy(outputs.logits, target)}
        masks = [cross_entropy(y, target) for name, y in outputs.aux.items() if name.startswith("mask")]
        if masks:
            terms["mask"] = torch.stack(masks).mean()
        if "cat" in outputs.aux:
            weight, loss = self.terms["cat"]
            terms["cat"] = weight * loss(outputs.aux["cat"], target)
        return terms
