"""What stands before every clock of the benchmarks."""

from __future__ import annotations


class GateError(ArithmeticError):
    """An answer that is wrong in this precision, or differs from the rival's: its time says nothing."""
