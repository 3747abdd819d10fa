"""The authors' NMF burger V1 as they run it: convolutions, batch norm and about ninety small eager launches."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger_lab.bench import authors_reference


class AuthorsNMF(nn.Module):
    """ReLU(X + BN(W_u NMF(ReLU(W_l X)))), a fresh random dictionary in every call, training or not."""

    def __init__(self, channels: int, *, rank: int = 64, steps: int = 6) -> None:
        super().__init__()
        self.rank, self.steps = rank, steps
        self.lower = nn.Conv2d(channels, channels, 1)
        self.upper = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        for bread in (self.lower, self.upper):
            nn.init.normal_(bread.weight, std=math.sqrt(2 / channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.lower(x), inplace=True).flatten(2)  # one name throughout: nothing is held longer than theirs
        bases = F.normalize(torch.rand(x.shape[0], y.shape[1], self.rank, device=x.device), dim=1).to(y.dtype)
        y = authors_reference.nmf(y, bases, self.steps).reconstruction
        y = self.norm(self.upper(y.view_as(x)))
        return F.relu(x + y, inplace=True)
