"""Shape checks in the notation of the docstrings: a tensor and its axes, one letter each."""

from __future__ import annotations

from torch import Tensor

from hamburger.errors import ShapeError


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


def check_float(call: str, name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise ShapeError(
            f"{call}: {name} must hold real floating point numbers, got {tensor.dtype}; convert it with {name}.float()"
        )
