"""Generators beside each other: a row each, the same classes and latents in all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hamburger.errors import InputError
from hamburger.gan.sampling import sample
from hamburger.gan.sheets import sheet, to_bytes
from hamburger.use.gan.source import open_generator

COLUMNS = 16


def beside(
    runs: Sequence[Path], *, columns: int = COLUMNS, seed: int = 0, device: str | torch.device = "cpu"
) -> Tensor:
    """Images of each run's generator in a row, of classes spread over all there are.   ->   3 H W, uint8"""
    rows, first = [], None
    for run in runs:
        generator, info, _ = open_generator(run)
        known = (generator.num_classes, generator.resolution, info.classes)
        if first is not None and known != first:
            raise InputError(f"beside: {run} has other classes or sizes than {runs[0]}; give runs of one data set")
        first = known
        classes = torch.arange(columns) * generator.num_classes // columns
        rows.append(to_bytes(sample(generator.to(device), columns, seed=seed, labels=classes)).cpu())
    if not rows:
        raise InputError("beside: there is no run to show; give at least one")
    return sheet(torch.cat(rows), columns=columns)
