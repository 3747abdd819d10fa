"""What can go wrong, as types, and one helper that finds the name a person meant."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence


class HamburgerError(Exception):
    """All that this library raises about its input."""


class ShapeError(HamburgerError, ValueError):
    """Tensors whose sizes do not fit each other, or the call."""


class InputError(HamburgerError, TypeError, ValueError):
    """Something that is no tensor of the right kind, device or sign."""


class UnknownNameError(HamburgerError, KeyError, ValueError):
    """A name that is in no registry. Also a ValueError: to the caller it is simply a bad argument."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


class OptionError(HamburgerError, TypeError, ValueError):
    """An option that the called thing does not have, or a value that it does not take."""


class NotFiniteError(HamburgerError, ValueError):
    """NaN or infinity in an input, found under `hamburger.debug()`."""


class DataError(HamburgerError, ValueError):
    """A data folder that cannot be used as it is. `problems` holds each defect with its path."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ImplicitGradientError(HamburgerError, ArithmeticError):
    """Proposition 2 could not be applied well enough to trust its gradient. `findings` holds what was measured."""

    def __init__(self, message: str, findings: dict[str, float] | None = None) -> None:
        super().__init__(message)
        self.findings = findings or {}


class ExportError(HamburgerError, RuntimeError):
    """A network that a graph format cannot hold, or a graph that does not give what the network gives."""


class CheckpointError(HamburgerError, RuntimeError):
    """Weights or a training state that cannot be read, or that belong to something else."""


class TrainingError(HamburgerError, RuntimeError):
    """A run that had to stop; what it had saved is intact."""


class Interrupted(HamburgerError):
    """A run that was asked to stop, and has saved where it was."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'nmf'? known: cd, nmf, vq`, for the end of a message."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ";"
    return f"{hint} known: {', '.join(known)}"


def check_choice(call: str, option: str, value: object, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise OptionError(f"{call}: no {option} {value!r}{did_you_mean(str(value), known)}")


def check_count(call: str, option: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"{call}: {option} must be a whole number of at least {least}, got {value!r}")


def check_seed(call: str, value: object) -> None:
    check_count(call, "seed", value, least=0)
    if int(value) >= 2**63:  # type: ignore[call-overload]
        raise OptionError(f"{call}: seed must be below 2^63, got {value}")


def check_flag(call: str, option: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{call}: {option} must be True or False, got {value!r}")


def check_positive(call: str, option: str, value: object, *, zero: bool = False, most: float = math.inf) -> None:
    """A number above 0 (or at least 0), finite, and at most `most`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and (value >= 0 if zero else value > 0) and value < math.inf and value <= most):  # type: ignore[operator]
        rule = "at least 0" if zero else "above 0"
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise OptionError(f"{call}: {option} must be a finite number {rule}{upper}, got {value!r}")
