"""Checks of input tensors, precision (autocast, float32 for halves), and who calls: an exporter or a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from hamburger.errors import InputError, NotFiniteError, ShapeError

HALF = (torch.float16, torch.bfloat16)
HALF_MAX = torch.finfo(torch.float16).max
FLOATS = (*HALF, torch.float32, torch.float64)


def check_shapes(call: str, **tensors: tuple[Tensor, str]) -> None:
    """Raise unless every letter stands for one size in all tensors.

    >>> check_shapes("update_codes", x=(x, "b d n"), bases=(bases, "b d r"))
    """
    seen: dict[str, tuple[int, str]] = {}
    for name, (tensor, axes) in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"{call}: {name} must be a torch.Tensor '{axes}', got {type(tensor).__name__}")
        letters = axes.split()
        here = f"{name} {tuple(tensor.shape)} '{axes}'"
        if tensor.dim() != len(letters):
            raise ShapeError(f"{call}: {name} must have {len(letters)} axes '{axes}', got {tuple(tensor.shape)}")
        for letter, size in zip(letters, tensor.shape, strict=True):
            first = seen.setdefault(letter, (size, here))
            if first[0] != size:
                raise ShapeError(f"{call}: {letter} is {first[0]} in {first[1]} but {size} in {here}")


def check_tensor(call: str, name: str, tensor: object) -> None:
    """Raise unless `tensor` is a tensor of float16, bfloat16, float32 or float64."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{call}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in FLOATS:
        raise InputError(
            f"{call}: {name} must hold floating point numbers (float16, bfloat16, float32 or float64), got "
            f"{tensor.dtype}; convert it with .float()"
        )


def check_images(call: str, name: str, images: Tensor) -> None:
    """Raise unless the images are a batch of floating point numbers, b 3 h w."""
    check_tensor(call, name, images)
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1] != 3 or 0 in shape:
        raise ShapeError(f"{call}: {name} must be (b, 3, h, w), got {shape}; for one image, pass image[None]")


# -- value checks ------------------------------------------------------------------------------------------------------

_enabled = False


class debug:
    """Turn value checks on: `with hb.debug(): ...` for a block, or `hb.debug()` until further notice.

    >>> with hb.debug():
    ...     out = hb.decompose(x, "vq", rank=4)

    An input with NaN or infinity then raises `NotFiniteError`, which names the first such sample. A negative input to a
    non-negative ham raises on every device (on the CPU it always does). Compiled calls check nothing.
    """

    def __init__(self, enabled: bool = True) -> None:
        global _enabled
        self._before, self._wanted = _enabled, enabled
        _enabled = enabled

    def __enter__(self) -> debug:
        global _enabled
        _enabled = self._wanted
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _enabled
        _enabled = self._before


def debugging() -> bool:
    """Whether value checks are on."""
    return _enabled


def check_finite(call: str, name: str, x: Tensor) -> None:
    """Raise on the first sample of x (b ...) that is not finite. Does nothing outside `debug()`."""
    if not _enabled or torch.compiler.is_compiling():
        return
    good = torch.isfinite(x).flatten(1).all(1)
    if not good.all():
        sample = int((~good).nonzero()[0])
        values = x[sample]
        raise NotFiniteError(
            f"{call}: {name} must be finite, but sample {sample} of {x.shape[0]} has {int(values.isnan().sum())} NaN "
            f"and {int(values.isinf().sum())} infinite of its {values.numel()} values; "
            f"look at what produced {name} (a loss scale or a learning rate too high is the usual cause)"
        )


def check_nonnegative(call: str, name: str, x: Tensor) -> None:
    """Raise if x (b ...) has a negative entry. Always on the CPU; under `debug()` elsewhere, since it synchronises."""
    if torch.compiler.is_compiling() or not (x.device.type == "cpu" or _enabled):
        return
    # the minimum alone is several times faster; with a NaN in x it is NaN, which is not negative: NaN propagates
    if not x.amin() >= 0 and (x < 0).any():
        raise InputError(
            f"{call}: this ham needs {name} >= 0, got a minimum of {x.min().item():.4g}; pass {name}.relu()"
        )


# -- nested values -----------------------------------------------------------------------------------------------------


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return the value with the function applied to each tensor in its nested dicts, lists, tuples and named tuples."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        mapped = [map_tensors(function, each) for each in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    return value


def list_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in nested dicts, lists, tuples and named tuples."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in list_tensors(part)]


# -- precision ---------------------------------------------------------------------------------------------------------


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast uses for products on the device; None where it is off."""
    # the meta device has no autocast and asking raises; torch's own test for that cannot be compiled in torch 2.11
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """Context manager: turn autocast off, if it is on."""
    if autocast_dtype(device_type) is None:
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def widen(x: Tensor) -> Tensor:
    """Return a half-precision tensor as float32, any other unchanged."""
    return x.float() if x.dtype in HALF else x


def is_exporting() -> bool:
    """Whether torch exports a graph: it leaves this process, and must not contain our kernels or the example's sizes.

    torch 2.6 cannot distinguish export from compilation; code for export is correct in both.
    """
    # what torch.compiler.is_exporting() returns, but compiled code in torch 2.11 takes that call for True
    exporting = getattr(torch.compiler, "_is_exporting_flag", None)
    return torch.onnx.is_in_onnx_export() or (torch.compiler.is_compiling() if exporting is None else exporting)


def is_transformed() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is active."""
    functorch: bool = torch._C._are_functorch_transforms_active()
    return functorch or torch.autograd.forward_ad._current_level >= 0


def is_recomputing() -> bool:
    """Whether a backward pass calls this forward pass. Compiled calls cannot know."""
    if torch.compiler.is_compiling():
        return False
    find_backward_pass = getattr(torch._C, "_current_graph_task_id", None)
    return find_backward_pass is not None and find_backward_pass() != -1
