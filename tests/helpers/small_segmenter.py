"""A segmenter small enough for every test."""

from __future__ import annotations

import torch
from torch import nn

import hamburger as hb
from hamburger.backbones import Backbone
from hamburger.checkpoints.weights_file import Info
from hamburger.segmentation.heads.base import Head, HeadOutputs
from hamburger.segmentation.model import Segmenter

CLASSES = ("background", "cat", "dog", "person")
PALETTE = ((0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255))


def info(classes=CLASSES, palette=PALETTE):
    return Info(classes=classes, palette=palette, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))


class TwoConvolutions(Backbone):
    channels, strides = (16,), (4,)

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()
        )

    def forward(self, x):
        return [self.layers(x)]


class Plain(Head):
    def __init__(self, context, num_classes):
        super().__init__()
        # a warmer softmax: at 0.01 it would amplify rounding a hundred times
        options = {"temperature": 0.1} if context in ("vq", "cd") else {}
        self.context = hb.create_context(context, channels=16, **options) if context else nn.Identity()
        self.classifier = nn.Conv2d(16, num_classes, 1)

    def forward(self, features):
        return HeadOutputs(self.classifier(self.context(features[-1])), {})


def segmenter(context="nmf", classes=4):
    torch.manual_seed(0)
    net = Segmenter(TwoConvolutions(), Plain(context, classes), num_classes=classes)
    nn.init.normal_(net.head.classifier.weight)
    return net.eval()


class ByColour(nn.Module):
    """Classify each pixel by its strongest colour, so that the right label of every pixel is known."""

    def forward(self, x):
        return torch.cat([torch.full_like(x[:, :1], -9.0), x], dim=1)
