"""Segment 3-D volumes: a small U-shaped network with a Hamburger at its coarsest level.

pip install .
python examples/volumes.py
"""

import torch
from torch import nn

import hamburger as hb


def block(channels_in, channels_out, stride=1):
    conv = nn.Conv3d(channels_in, channels_out, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.InstanceNorm3d(channels_out, affine=True), nn.ReLU())


class VolumeNet(nn.Module):
    """(b, 1, depth, h, w) -> logits (b, classes, depth, h, w). The layer takes 1, 2 or 3 spatial axes."""

    def __init__(self, classes=2):
        super().__init__()
        self.fine, self.coarse = block(1, 8), nn.Sequential(block(8, 16, 2), block(16, 32, 2))
        self.context = hb.Hamburger(32, ham="nmf", rank=8, norm="none")  # batches of volumes are small: no batch norm
        self.head = nn.Conv3d(8 + 32, classes, 1)

    def forward(self, x):
        fine = self.fine(x)
        context = self.context(self.coarse(fine))
        return self.head(torch.cat([fine, nn.functional.interpolate(context, fine.shape[2:], mode="trilinear")], 1))


def make_volume(generator):
    """A noisy volume with a bright ball, and the ball's voxels."""
    axes = torch.meshgrid(*[torch.arange(32.0)] * 3, indexing="ij")
    centre = torch.randint(8, 24, (3,), generator=generator)
    ball = sum((axis - c) ** 2 for axis, c in zip(axes, centre, strict=True)) < 36
    return (ball + 0.5 * torch.randn(32, 32, 32, generator=generator))[None], ball.long()


torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
net = VolumeNet()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
for _ in range(30):
    volumes, labels = map(torch.stack, zip(*[make_volume(generator) for _ in range(2)], strict=True))
    loss = nn.functional.cross_entropy(net(volumes), labels, weight=torch.tensor([0.1, 0.9]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
volume, label = make_volume(generator)
with torch.inference_mode():
    ball = net.eval()(volume[None]).argmax(1)[0]
iou = (ball & label).sum() / (ball | label).sum()
print(f"IoU of the ball in a new volume: {iou.item():.2f}")
