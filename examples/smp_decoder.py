"""A Hamburger as decoder for encoders of segmentation_models_pytorch.

pip install . segmentation-models-pytorch
python examples/smp_decoder.py
"""

import segmentation_models_pytorch as smp
import torch
from segmentation_models_pytorch.base import SegmentationHead, SegmentationModel
from torch import nn

import hamburger as hb


class HamburgerDecoder(nn.Module):
    """LightHam's layout: the last three stages, resized and concatenated, then squeeze, Hamburger, align."""

    def __init__(self, encoder_channels, channels=128):
        super().__init__()
        self.squeeze = nn.Conv2d(sum(encoder_channels[-3:]), channels, 1)
        self.context = hb.Hamburger(channels, ham="nmf", rank=16)
        self.align = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())

    def forward(self, features):
        size = features[-3].shape[2:]  # one eighth of the image
        stages = [nn.functional.interpolate(x, size, mode="bilinear") for x in features[-3:]]
        return self.align(self.context(self.squeeze(torch.cat(stages, 1)).relu()))


class HamSegmenter(SegmentationModel):
    """An smp model: `encoder`, `decoder`, `segmentation_head`, and smp's own `predict`, losses and metrics."""

    def __init__(self, encoder_name="resnet18", encoder_weights=None, classes=2, channels=128):
        super().__init__()
        self.encoder = smp.encoders.get_encoder(encoder_name, weights=encoder_weights)
        self.decoder = HamburgerDecoder(self.encoder.out_channels, channels)
        self.segmentation_head = SegmentationHead(channels, classes, kernel_size=1, upsampling=8)
        self.classification_head = None
        self.initialize()


torch.manual_seed(0)
net = HamSegmenter(classes=3)
images, labels = torch.rand(2, 3, 96, 128), torch.randint(3, (2, 96, 128))
loss_function = smp.losses.DiceLoss("multiclass")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(3):
    loss = loss_function(net(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: Dice loss {loss.item():.3f}")
print("scores:", tuple(net.predict(images).shape))  # (2, 3, 96, 128)
