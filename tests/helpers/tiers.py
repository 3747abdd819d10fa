"""Marks for parametrized tests whose values cost seconds each."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def full_except(representatives: Iterable, values: Iterable) -> list:
    """`values` for `pytest.mark.parametrize`; those outside `representatives` run only in `make test-all`."""
    return [value if value in representatives else pytest.param(value, marks=pytest.mark.full) for value in values]
