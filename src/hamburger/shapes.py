"""Shape checks in the notation of the docstrings: a tensor and its axes, one letter each."""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger.errors import InputError, ShapeError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_shapes(call: str, **tensors: tuple[Tensor, str]) -> None:
    """Every letter must mean one size throughout the call.

    `check_shapes("update_codes", x=(x, "b d n"), bases=(bases, "b d r"))`
    """
    seen: dict[str, tuple[int, str]] = {}
    for name, (tensor, axes) in tensors.items():
        letters = axes.split()
        here = f"{name} {tuple(tensor.shape)} '{axes}'"
        if tensor.dim() != len(letters):
            raise ShapeError(f"{call}: {name} must have {len(letters)} axes '{axes}', got {tuple(tensor.shape)}")
        for letter, size in zip(letters, tensor.shape, strict=True):
            first = seen.setdefault(letter, (size, here))
            if first[0] != size:
                raise ShapeError(f"{call}: {letter} is {first[0]} in {first[1]} but {size} in {here}")


def check_tensor(call: str, name: str, tensor: object) -> None:
    """A tensor of real floating point numbers in a format that can be computed with."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{call}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in FLOATS:
        raise InputError(
            f"{call}: {name} must hold floating point numbers (float16, bfloat16, float32 or float64), got "
            f"{tensor.dtype}; convert it with .float()"
        )
