"""A small classifier, saved as a training run saves it."""

from __future__ import annotations

import torch

from hamburger.checkpoints.weights_file import Info
from hamburger.classification.model import create_classifier
from hamburger.classification.task import CLASSIFICATION

FORMS = ("disc", "square", "cross", "ring")


def save_small(path, context="nmf", *, seed=0, length=40):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = create_classifier(
            "resnet10t",
            num_classes=4,
            context=context,
            context_options={"rank": 3} if context == "nmf" else {},
            gate="one",
            backbone_options={"stem_width": 8, "channels": [8, 16, 16, 32]},
        )
        torch.nn.init.normal_(net.net.fc.weight)  # timm initialises it near zero: all images would get the same scores
    data = {"data": "figures", "data_options": {"length": length}, "val_split": "val", "size": 32}
    path.parent.mkdir(parents=True, exist_ok=True)
    half, extra = (0.5, 0.5, 0.5), {"recipe": "figures-classes", "step": 7, **data}
    CLASSIFICATION.save(path, net, Info(classes=FORMS, mean=half, std=half, extra=extra))
