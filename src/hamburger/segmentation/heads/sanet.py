"""SANet (Zhong et al., "Squeeze-and-attention networks for semantic segmentation", CVPR 2020).

Rebuilt from the paper's formula and a community implementation of the block. Certain: the unit's formula, one unit on
each of four stages, that their outputs are merged, and the weights of the three losses. Uncertain, and chosen here: the
width of the units, how outputs are merged, which output each loss uses, and where the categories are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hamburger.contexts.common import conv_norm_relu, resize
from hamburger.contexts.sanet import SqueezeAttention, Upsampling
from hamburger.errors import check_positive
from hamburger.segmentation.heads.base import Head, HeadOutputs, PixelClassifier, check_features, check_head, heads
from hamburger.segmentation.losses import cross_entropy, find_labelled_images, presence_loss

STAGES = (2, 3, 4, 5)


@heads.register("sanet")
class SANetHead(Head):
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
        self.cat_weight, self.dense_weight = cat_weight, dense_weight
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
            terms["cat"] = self.cat_weight * presence_loss(outputs.aux["cat"], target)
        return terms

    def counts(self, target: Tensor) -> dict[str, Tensor]:
        return {"cat": find_labelled_images(target).sum()}
