"""A made-up hyperspectral scene: every pixel mixes a few spectra, so bands x pixels is a matrix of known rank."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Scene(NamedTuple):
    clean: Tensor  # d n, in [0, 1], of rank r
    noisy: Tensor  # d n, >= 0
    height: int
    width: int


BANDS = 64


def patchwork(*, bands: int = BANDS, side: int = 96, rank: int = 6, noise: float = 0.25, seed: int = 0) -> Scene:
    """4 x 4 striped and checked patches, each between two of `rank` smooth spectra; Gaussian noise, cut off at zero."""
    generator = torch.Generator().manual_seed(seed)
    spectra = _spectra(bands, rank)  # d r
    abundances = _abundances(side, rank, generator)  # r n, columns sum to 1
    clean = spectra @ abundances
    noisy = (clean + noise * torch.randn(clean.shape, generator=generator)).clamp(min=0)
    return Scene(clean, noisy, side, side)


def _spectra(bands: int, rank: int) -> Tensor:
    """Bumps spread over the bands, on a small floor.   ->   d r"""
    position = torch.linspace(0, 1, bands)[:, None]
    centres = torch.linspace(0.05, 0.95, rank)[None]
    return 0.05 + 0.95 * torch.exp(-0.5 * ((position - centres) / 0.09) ** 2)


def _abundances(side: int, rank: int, generator: torch.Generator) -> Tensor:
    """Which spectra a pixel mixes: per patch two of them, weighted by a texture.   ->   r n"""
    patch = side // 4
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    weights = torch.zeros(rank, side, side)
    for i in range(4):
        for j in range(4):
            first, second = torch.randperm(rank, generator=generator)[:2].tolist()
            inside = (row // patch == i) & (column // patch == j)
            textures = ((row // 3) % 2, (column // 3) % 2, (row // 4 + column // 4) % 2, ((row + column) // 4) % 2)
            share = 0.1 + 0.8 * textures[(i + 2 * j) % 4].float()
            weights[first] += torch.where(inside, share, 0.0)
            weights[second] += torch.where(inside, 1 - share, 0.0)
    return weights.flatten(1)


def as_rgb(matrix: Tensor, height: int, width: int) -> Tensor:
    """Three broad groups of bands as red, green and blue.   d n   ->   h w 3, in [0, 1]"""
    blue, green, red = (group.mean(0) for group in matrix.tensor_split(3, dim=0))
    picture = torch.stack([red, green, blue], dim=-1) / 0.5
    return picture.clamp(0, 1).unflatten(0, (height, width))
