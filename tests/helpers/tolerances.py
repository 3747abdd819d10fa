"""Tolerances, written once: the relative error that each dtype may have against a float64 reference."""

from __future__ import annotations

import torch
from torch import Tensor

# Half inputs are rounded once on the way in and once on the way out; the solve itself runs in float32.
RELATIVE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}


def relative_error(value: Tensor, reference: Tensor) -> float:
    """|value - reference| / |reference| in float64; NaN where value has NaN."""
    reference = reference.detach().double().cpu()
    scale = reference.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return float((value.detach().double().cpu() - reference).norm() / scale)


def assert_close(value: Tensor, reference: Tensor, *, slack: float = 1.0, dtype: torch.dtype | None = None) -> None:
    """Within the tolerance of value's dtype (times `slack`, for a test that says why).

    `dtype` names another one where value is wider than what it was computed with; TF32 counts as float16, whose digits
    it has.
    """
    if value.shape != reference.shape:
        raise AssertionError(f"shape {tuple(value.shape)}, expected {tuple(reference.shape)}")
    error, allowed = relative_error(value, reference), slack * RELATIVE[dtype or value.dtype]
    if not error <= allowed:
        raise AssertionError(f"relative error {error:.3g}, allowed {allowed:.3g} for {dtype or value.dtype}")
