"""What can go wrong, as types, and one helper that finds the name a person meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ShapeError(ValueError):
    """Tensors whose sizes do not fit each other, or the call."""


class UnknownNameError(KeyError, ValueError):
    """A name that is in no registry. Also a ValueError: to the caller it is simply a bad argument."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


class OptionError(TypeError, ValueError):
    """An option that the called thing does not have, or a value that it does not take."""


class NotFiniteError(ValueError):
    """NaN or infinity in an input, found under `hamburger.debug()`."""


class ImplicitGradientError(ArithmeticError):
    """Proposition 2 could not be applied well enough to trust its gradient. `findings` holds what was measured."""

    def __init__(self, message: str, findings: dict[str, float] | None = None) -> None:
        super().__init__(message)
        self.findings = findings or {}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'nmf'? known: cd, nmf, vq`, for the end of a message."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ";"
    return f"{hint} known: {', '.join(known)}"


def check_choice(call: str, option: str, value: object, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise OptionError(f"{call}: no {option} {value!r}{did_you_mean(str(value), known)}")


def check_count(call: str, option: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"{call}: {option} must be a whole number of at least {least}, got {value!r}")


def check_positive(call: str, option: str, value: float, *, zero: bool = False) -> None:
    if not (value >= 0 if zero else value > 0) or value == float("inf"):
        rule = "a finite number of at least 0" if zero else "a finite number above 0"
        raise OptionError(f"{call}: {option} must be {rule}, got {value!r}")
