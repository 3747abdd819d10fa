"""The Inception network that FID is defined by: that of 2015-12-05, as its weights were carried over to PyTorch.

Names of parameters are torchvision's, which those weights use. It differs from torchvision's `inception_v3` in three
ways, all needed for the same features: average pooling leaves the padding out of its means; the last block pools by
maximum; there are 1008 classes and no auxiliary classifier. Batch normalisation has eps 1e-3.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 2048
CLASSES = 1008
Size = int | tuple[int, int]


class Conv(nn.Module):
    """Convolution, normalisation, ReLU."""

    def __init__(self, c: int, out: int, size: Size, *, stride: int = 1, padding: Size = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, out, size, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def _average(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


class BlockA(nn.Module):
    """35 x 35."""

    def __init__(self, c: int, pooled: int) -> None:
        super().__init__()
        self.branch1x1 = Conv(c, 64, 1)
        self.branch5x5_1 = Conv(c, 48, 1)
        self.branch5x5_2 = Conv(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = Conv(c, 64, 1)
        self.branch3x3dbl_2 = Conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = Conv(96, 96, 3, padding=1)
        self.branch_pool = Conv(c, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        five = self.branch5x5_2(self.branch5x5_1(x))
        return torch.cat([self.branch1x1(x), five, double, self.branch_pool(_average(x))], 1)


class BlockB(nn.Module):
    """35 x 35 to 17 x 17."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.branch3x3 = Conv(c, 384, 3, stride=2)
        self.branch3x3dbl_1 = Conv(c, 64, 1)
        self.branch3x3dbl_2 = Conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = Conv(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, F.max_pool2d(x, 3, 2)], 1)


class BlockC(nn.Module):
    """17 x 17."""

    def __init__(self, c: int, d: int) -> None:
        super().__init__()
        row: tuple[Size, Size] = ((1, 7), (0, 3))
        column: tuple[Size, Size] = ((7, 1), (3, 0))
        self.branch1x1 = Conv(c, 192, 1)
        self.branch7x7_1 = Conv(c, d, 1)
        self.branch7x7_2 = Conv(d, d, row[0], padding=row[1])
        self.branch7x7_3 = Conv(d, 192, column[0], padding=column[1])
        self.branch7x7dbl_1 = Conv(c, d, 1)
        self.branch7x7dbl_2 = Conv(d, d, column[0], padding=column[1])
        self.branch7x7dbl_3 = Conv(d, d, row[0], padding=row[1])
        self.branch7x7dbl_4 = Conv(d, d, column[0], padding=column[1])
        self.branch7x7dbl_5 = Conv(d, 192, row[0], padding=row[1])
        self.branch_pool = Conv(c, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), single, double, self.branch_pool(_average(x))], 1)


class BlockD(nn.Module):
    """17 x 17 to 8 x 8."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.branch3x3_1 = Conv(c, 192, 1)
        self.branch3x3_2 = Conv(192, 320, 3, stride=2)
        self.branch7x7x3_1 = Conv(c, 192, 1)
        self.branch7x7x3_2 = Conv(192, 192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = Conv(192, 192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = Conv(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        three = self.branch3x3_2(self.branch3x3_1(x))
        seven = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([three, seven, F.max_pool2d(x, 3, 2)], 1)


class BlockE(nn.Module):
    """8 x 8. `pool` is "average", or "max" in the last block: an oddity of these weights' network, kept."""

    def __init__(self, c: int, pool: str) -> None:
        super().__init__()
        self.pool = pool
        self.branch1x1 = Conv(c, 320, 1)
        self.branch3x3_1 = Conv(c, 384, 1)
        self.branch3x3_2a = Conv(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = Conv(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = Conv(c, 448, 1)
        self.branch3x3dbl_2 = Conv(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = Conv(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = Conv(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = Conv(c, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        pooled = F.max_pool2d(x, 3, 1, 1) if self.pool == "max" else _average(x)
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

    `fc` is not used for them; it is here because the weights have it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Conv(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = Conv(32, 32, 3)
        self.Conv2d_2b_3x3 = Conv(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = Conv(64, 80, 1)
        self.Conv2d_4a_3x3 = Conv(80, 192, 3)
        self.Mixed_5b = BlockA(192, 32)
        self.Mixed_5c = BlockA(256, 64)
        self.Mixed_5d = BlockA(288, 64)
        self.Mixed_6a = BlockB(288)
        self.Mixed_6b = BlockC(768, 128)
        self.Mixed_6c = BlockC(768, 160)
        self.Mixed_6d = BlockC(768, 160)
        self.Mixed_6e = BlockC(768, 192)
        self.Mixed_7a = BlockD(768)
        self.Mixed_7b = BlockE(1280, "average")
        self.Mixed_7c = BlockE(2048, "max")
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
