"""Marks for parametrized tests whose values cost seconds each."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

# Its exporters fail on symbolic sizes, it cannot distinguish export from compilation, its dispatch modes see less.
not_on_torch_2_6 = pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="torch 2.6 cannot do this")

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))

# FSDP2 asks for averages; before 2.8 gloo has only sums.
GLOO_AVERAGES = TORCH >= (2, 8)


def full_except(representatives: Iterable, values: Iterable) -> list:
    """`values` for `pytest.mark.parametrize`; those outside `representatives` run only in `make test-all`."""
    return [value if value in representatives else pytest.param(value, marks=pytest.mark.full) for value in values]
