"""Random numbers as functions of a seed and a sample's number alone.

torch's generator on the CPU keeps 32 bits of its seed: with one for each of 50,000 samples, two would now and then be
the same. Here every sample has a stream of SplitMix64 (Steele et al., 2014) of its own, from 64 bits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def normals(seed: int, numbers: Tensor, width: int) -> Tensor:
    """Standard normal, by Box and Muller.   numbers: b   ->   b width"""
    bits = _bits(seed, numbers, 1, 2 * width)
    radius, angle = ((part + 1) * 2.0**-53 for part in bits.double().chunk(2, dim=1))  # in (0, 1]
    return ((-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()).float()


def classes(seed: int, numbers: Tensor, num_classes: int) -> Tensor:
    """0 ... num_classes - 1, all equally likely; the modulo's bias is below 2^-40 for thousands.   b   ->   b"""
    return _bits(seed, numbers, 0, 1)[:, 0] % num_classes


def _bits(seed: int, numbers: Tensor, first: int, count: int) -> Tensor:
    """Draws first, first + 1, ... of every sample's stream, 53 bits each.   b   ->   b count"""
    key = _mixed(torch.tensor(_signed(seed + GOLDEN), device="cpu"))
    stream = _mixed(key + _signed(GOLDEN) * (numbers + 1))
    steps = torch.arange(first + 1, first + count + 1, device="cpu")
    return _shifted(_mixed(stream[:, None] + _signed(GOLDEN) * steps), 11)


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's mixing, modulo 2^64: different numbers give different ones."""
    x = (x ^ _shifted(x, 30)) * _signed(FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, with zeros: torch's own shift repeats the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(x: int) -> int:
    """The int64 with the same 64 bits."""
    return (x + 2**63) % 2**64 - 2**63
