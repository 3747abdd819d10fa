"""Small networks of timm, torchvision and a user, to insert contexts into."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Plain(nn.Module):
    """A user's own network: a stem, a named block, a list of blocks, and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Conv2d(12, 12, 3, padding=1) for _ in range(2)])
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu_(block(x))
        return self.head(self.drop(x.mean((2, 3))))


def torchvision_resnet():
    models = pytest.importorskip("torchvision.models", reason="needs torchvision")
    return models.ResNet(models.resnet.BasicBlock, [1, 1, 2, 1], num_classes=10), {
        "layer3": "efficient",
        "layer3.1": ("nmf", {"rank": 8}),
    }


def torchvision_densenet():
    models = pytest.importorskip("torchvision.models", reason="needs torchvision")
    return models.DenseNet(8, (2, 2), 16, num_classes=10), {"features.denseblock2": "efficient"}


def timm_resnet():
    timm = pytest.importorskip("timm", reason="needs timm")
    return timm.create_model("resnet10t", num_classes=10), {"layer3": "sa", "layer4.0": "nmf"}


def timm_convnext():
    timm = pytest.importorskip("timm", reason="needs timm")
    net = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=10)
    return net, {"stages.2": "efficient", "stages.3.blocks.0": "cd"}


def timm_vit():
    timm = pytest.importorskip("timm", reason="needs timm")
    net = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, embed_dim=48, num_classes=10)
    return net, {"blocks.0": ("psp", {"grid": (4, 4)}), "blocks.1": "efficient", "blocks.2": ("nmf", {"rank": 8})}


def timm_regnet():
    """Its stages iterate over their children, whatever their names."""
    timm = pytest.importorskip("timm", reason="needs timm")
    return timm.create_model("regnetx_002", num_classes=10), {"s2": "efficient", "s3.b1": "efficient"}


def plain():
    return Plain(), {"stem": "efficient", "blocks.1": ("vq", {"rank": 4})}


NETWORKS = {
    build.__name__: build
    for build in (
        *(plain, torchvision_resnet, torchvision_densenet),
        *(timm_resnet, timm_convnext, timm_vit, timm_regnet),
    )
}


def mask_rcnn():
    """Mask R-CNN on a ResNet-18 with an FPN, on images of 64 pixels."""
    pytest.importorskip("torchvision", reason="needs torchvision")
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    sizes = {"min_size": 64, "max_size": 64, "rpn_post_nms_top_n_test": 8, "rpn_post_nms_top_n_train": 8}
    return MaskRCNN(backbone, num_classes=3, box_detections_per_img=3, box_batch_size_per_image=8, **sizes)
