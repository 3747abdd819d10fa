"""What benchmarks share: the error of a wrong result, the backend, growth exponents, models of `ham compare`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hamburger.kernels.dispatch import BACKEND_VARIABLE
from hamburger.segmentation.recipe import SegmentationRecipe
from hamburger.tasks.sweep import variants
from hamburger.training.recipe import apply


class WrongResultError(ArithmeticError):
    """A result is wrong in this precision or differs from the reference, so it is not timed."""


def requested_backend() -> str:
    """Return the backend that HAM_BACKEND names for the whole process, `auto` by default."""
    return os.environ.get(BACKEND_VARIABLE, "auto")


def growth_exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return p of time ~ size^p, by least squares on the logarithms; NaN below two sizes."""
    if len(set(sizes)) < 2:
        return math.nan
    u, v = [math.log(size) for size in sizes], [math.log(t) for t in times]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    covariance = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return covariance / sum((a - mean_u) ** 2 for a in u)


def format_last_exponent(figures: Mapping[int, float | None]) -> str:
    """Return the exponent between the two largest measured sizes as text; empty below two sizes.

    Small sizes are left out: they are launch-bound.
    """
    measured = {n: figure for n, figure in figures.items() if figure}
    largest = sorted(measured)[-2:]
    return f"{growth_exponent(largest, [measured[n] for n in largest]):.2f}" if len(largest) == 2 else ""


def model_options(name: str) -> dict[str, Any]:
    """The context of a row of `ham compare` as keywords of `create_model`."""
    model = apply(SegmentationRecipe(name=name), variants([name])[name]).model
    return {"context": model.context, "context_options": model.context_options}
