"""The Inception network that FID is defined by, that of 2015-12-05, in PyTorch.

Parameters are named as in torchvision, as in the published weights. Three differences from torchvision's `inception_v3`
are needed for the same features: average pooling excludes the padding; the last block pools by maximum; there are 1008
classes and no auxiliary classifier. Batch normalisation has eps 1e-3.

Bytes are scaled to [-1, 1] as in the package pytorch-fid, x / 127.5 - 1. The original graph, and the package
torch-fidelity, compute (x - 128) / 128 instead; apart from that the network here is torch-fidelity's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 2048
CLASSES = 1008
Size = int | tuple[int, int]


class InceptionConv(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, c: int, out: int, size: Size, *, stride: int = 1, padding: Size = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, out, size, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def _average_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


class InceptionA(nn.Module):
    """Block for maps of 35 x 35."""

    def __init__(self, c: int, pooled: int) -> None:
        super().__init__()
        self.branch1x1 = InceptionConv(c, 64, 1)
        self.branch5x5_1 = InceptionConv(c, 48, 1)
        self.branch5x5_2 = InceptionConv(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = InceptionConv(c, 64, 1)
        self.branch3x3dbl_2 = InceptionConv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = InceptionConv(96, 96, 3, padding=1)
        self.branch_pool = InceptionConv(c, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        five = self.branch5x5_2(self.branch5x5_1(x))
        return torch.cat([self.branch1x1(x), five, double, self.branch_pool(_average_pool(x))], 1)


class InceptionB(nn.Module):
    """Block from 35 x 35 to 17 x 17."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.branch3x3 = InceptionConv(c, 384, 3, stride=2)
        self.branch3x3dbl_1 = InceptionConv(c, 64, 1)
        self.branch3x3dbl_2 = InceptionConv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = InceptionConv(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, F.max_pool2d(x, 3, 2)], 1)


class InceptionC(nn.Module):
    """Block for maps of 17 x 17."""

    def __init__(self, c: int, d: int) -> None:
        super().__init__()
        row: tuple[Size, Size] = ((1, 7), (0, 3))
        column: tuple[Size, Size] = ((7, 1), (3, 0))
        self.branch1x1 = InceptionConv(c, 192, 1)
        self.branch7x7_1 = InceptionConv(c, d, 1)
        self.branch7x7_2 = InceptionConv(d, d, row[0], padding=row[1])
        self.branch7x7_3 = InceptionConv(d, 192, column[0], padding=column[1])
        self.branch7x7dbl_1 = InceptionConv(c, d, 1)
        self.branch7x7dbl_2 = InceptionConv(d, d, column[0], padding=column[1])
        self.branch7x7dbl_3 = InceptionConv(d, d, row[0], padding=row[1])
        self.branch7x7dbl_4 = InceptionConv(d, d, column[0], padding=column[1])
        self.branch7x7dbl_5 = InceptionConv(d, 192, row[0], padding=row[1])
        self.branch_pool = InceptionConv(c, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), single, double, self.branch_pool(_average_pool(x))], 1)


class InceptionD(nn.Module):
    """Block from 17 x 17 to 8 x 8."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.branch3x3_1 = InceptionConv(c, 192, 1)
        self.branch3x3_2 = InceptionConv(192, 320, 3, stride=2)
        self.branch7x7x3_1 = InceptionConv(c, 192, 1)
        self.branch7x7x3_2 = InceptionConv(192, 192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = InceptionConv(192, 192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = InceptionConv(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        three = self.branch3x3_2(self.branch3x3_1(x))
        seven = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([three, seven, F.max_pool2d(x, 3, 2)], 1)


class InceptionE(nn.Module):
    """Block for maps of 8 x 8. `pool` is "average", or "max" in the last block, an oddity of the original network."""

    def __init__(self, c: int, pool: str) -> None:
        super().__init__()
        self.pool = pool
        self.branch1x1 = InceptionConv(c, 320, 1)
        self.branch3x3_1 = InceptionConv(c, 384, 1)
        self.branch3x3_2a = InceptionConv(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = InceptionConv(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = InceptionConv(c, 448, 1)
        self.branch3x3dbl_2 = InceptionConv(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = InceptionConv(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = InceptionConv(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = InceptionConv(c, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        pooled = F.max_pool2d(x, 3, 1, 1) if self.pool == "max" else _average_pool(x)
        return torch.cat(
            [
                self.branch1x1(x),
                *(self.branch3x3_2a(single), self.branch3x3_2b(single)),
                *(self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)),
                self.branch_pool(pooled),
            ],
            1,
        )


class FidInception(nn.Module):
    """Pooled features of the last block.   b 3 299 299, in [0, 1]    ->    b 2048

    `fc` is not used; it is here because the weights file has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = InceptionConv(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = InceptionConv(32, 32, 3)
        self.Conv2d_2b_3x3 = InceptionConv(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = InceptionConv(64, 80, 1)
        self.Conv2d_4a_3x3 = InceptionConv(80, 192, 3)
        self.Mixed_5b = InceptionA(192, 32)
        self.Mixed_5c = InceptionA(256, 64)
        self.Mixed_5d = InceptionA(288, 64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, 128)
        self.Mixed_6c = InceptionC(768, 160)
        self.Mixed_6d = InceptionC(768, 160)
        self.Mixed_6e = InceptionC(768, 192)
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280, "average")
        self.Mixed_7c = InceptionE(2048, "max")
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = 2 * x - 1
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = F.max_pool2d(x, 3, 2)
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x))
        x = F.max_pool2d(x, 3, 2)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return x.mean((2, 3))
