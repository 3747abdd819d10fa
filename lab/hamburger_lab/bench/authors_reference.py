"""The three hams as in the authors' code: plain eager torch, one product after another.

The maths is the library's, written independently, with the inefficiencies of the authors' code: codes are n x r, VQ and
CD normalise X again in every step and compute first codes that are never read, CD inverts its Gram matrix. The gradient
is one-step: all steps run without a graph, then the codes are computed once more with one.

Every function takes x (b d n) and the initial bases (b d r) and returns the final bases and D C (b d n).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INVERSE_TEMPERATURE = 100.0
BETA = 0.1
EPS = 1e-6


class Solution(NamedTuple):
    bases: Tensor  # b d r
    reconstruction: Tensor  # b d n


def nmf(x: Tensor, bases: Tensor, steps: int) -> Solution:
    """Multiplicative updates; the first codes are a softmax of the plain inner products."""
    with torch.no_grad():
        codes = F.softmax(torch.bmm(x.transpose(1, 2), bases), dim=-1)  # b n r
        for _ in range(steps):
            codes = _multiplied_codes(x, bases, codes)
            numerator = torch.bmm(x, codes)
            denominator = bases.bmm(codes.transpose(1, 2).bmm(codes))
            bases = bases * numerator / (denominator + EPS)
    codes = _multiplied_codes(x, bases, codes)
    return Solution(bases, torch.bmm(bases, codes.transpose(1, 2)))


def _multiplied_codes(x: Tensor, bases: Tensor, codes: Tensor) -> Tensor:
    """b n r   ->   b n r"""
    numerator = torch.bmm(x.transpose(1, 2), bases)
    denominator = codes.bmm(bases.transpose(1, 2).bmm(bases))
    return codes * numerator / (denominator + EPS)


def vq(x: Tensor, bases: Tensor, steps: int) -> Solution:
    """Soft k-means by cosine; in the read-out the norms of x are constants."""
    with torch.no_grad():
        _cosine_codes(x, bases)  # the first codes, unused
        for _ in range(steps):
            bases = _weighted_means(x, _cosine_codes(x, bases))
        unit_bases = F.normalize(bases, dim=1, eps=EPS)
        lengths = x.norm(dim=1).unsqueeze(2)  # b n 1
    similarity = torch.bmm(x.transpose(1, 2), unit_bases) / lengths.clamp(min=EPS)
    codes = F.softmax(INVERSE_TEMPERATURE * similarity, dim=-1)
    return Solution(bases, torch.bmm(bases, codes.transpose(1, 2)))


def cd(x: Tensor, bases: Tensor, steps: int) -> Solution:
    """Soft spherical k-means, then ridge regression through an explicit inverse."""
    with torch.no_grad():
        _cosine_codes(x, bases)  # the first codes, unused
        for _ in range(steps):
            bases = F.normalize(_weighted_means(x, _cosine_codes(x, bases)), dim=1, eps=EPS)
        identity = torch.eye(bases.shape[2], dtype=x.dtype, device=x.device)
        inverse = torch.linalg.inv(bases.transpose(1, 2).bmm(bases) + BETA * identity)
    codes = torch.bmm(torch.bmm(x.transpose(1, 2), bases), inverse)
    return Solution(bases, torch.bmm(bases, codes.transpose(1, 2)))


def _cosine_codes(x: Tensor, bases: Tensor) -> Tensor:
    """softmax over r of cosine / T.   ->   b n r"""
    unit_x = F.normalize(x, dim=1, eps=EPS)
    unit_bases = F.normalize(bases, dim=1, eps=EPS)
    return F.softmax(INVERSE_TEMPERATURE * torch.bmm(unit_x.transpose(1, 2), unit_bases), dim=-1)


def _weighted_means(x: Tensor, codes: Tensor) -> Tensor:
    """Columns of x averaged with the weights of each code.   codes: b n r   ->   b d r"""
    return torch.bmm(x, codes / (EPS + codes.sum(dim=1, keepdim=True)))


SOLVERS: dict[str, Callable[[Tensor, Tensor, int], Solution]] = {"cd": cd, "nmf": nmf, "vq": vq}


# -- the authors' NMF burger V1: about ninety small eager launches ----------------------------------------------------


class AuthorsNMF(nn.Module):
    """ReLU(X + BN(W_u NMF(ReLU(W_l X)))), a new random dictionary in every call, also in evaluation."""

    def __init__(self, channels: int, *, rank: int = 64, steps: int = 6) -> None:
        super().__init__()
        self.rank, self.steps = rank, steps
        self.lower = nn.Conv2d(channels, channels, 1)
        self.upper = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        for bread in (self.lower, self.upper):
            nn.init.normal_(bread.weight, std=math.sqrt(2 / channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.lower(x), inplace=True).flatten(
            2
        )  # one name throughout, so that tensors are freed as early as theirs
        bases = F.normalize(torch.rand(x.shape[0], y.shape[1], self.rank, device=x.device), dim=1).to(y.dtype)
        y = nmf(y, bases, self.steps).reconstruction
        y = self.norm(self.upper(y.view_as(x)))
        return F.relu(x + y, inplace=True)
