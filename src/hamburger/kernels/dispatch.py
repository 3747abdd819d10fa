"""The whole block around a ham, up to its upper bread or to its end. Derivation and launches: README.md beside it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class BlockPlan(NamedTuple):
    """What is solved and how.

    A ham is a name and its numbers, in this order: "nmf" (eps), "vq" (temperature, constant_norms), "cd" (temperature,
    beta). `dtype` is that of the products.
    """

    ham: str
    options: tuple[float, ...]
    steps: int
    dtype: torch.dtype


class BreadWeights(NamedTuple):
    """Of both breads. lower: d c   bias: d   upper: c d"""

    lower: Tensor
    bias: Tensor | None
    upper: Tensor


class NormParameters(NamedTuple):
    """A batch norm in evaluation: its running statistics, and weight and bias where it has them. Each: c"""

    mean: Tensor
    var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float


class BatchNormState(NamedTuple):
    """A batch norm in training: its running statistics move."""

    norm: NormParameters
    momentum: float
    tracked: Tensor  # how many batches it has seen
