"""The exceptions of this library, and checks of options that raise them."""

from __future__ import annotations

import difflib
import errno
import math
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class HamburgerError(Exception):
    """Base of all errors that this library raises about its input.

    >>> try:
    ...     hb.create_context("nnf", 64)
    ... except hb.HamburgerError as error:             # an UnknownNameError
    ...     print(error)
    create_context: no context 'nnf'; did you mean 'nmf'? known: a2, acf, ...
    """


class ShapeError(HamburgerError, ValueError):
    """Tensors whose sizes do not fit each other or the call."""


class InputError(HamburgerError, TypeError, ValueError):
    """An input of the wrong type, device or sign."""


class UnknownNameError(HamburgerError, KeyError, ValueError):
    """A name that is not registered. Also a ValueError: to the caller it is a bad argument."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


class OptionError(HamburgerError, TypeError, ValueError):
    """An unknown option, or a value that an option does not accept."""


class NotFiniteError(HamburgerError, ValueError):
    """NaN or infinity: in an input under `hamburger.debug()`, in a prediction, or in what is written as JSON."""


class DataError(HamburgerError, ValueError):
    """A data folder that cannot be used. `problems` lists each defect with its path."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ImplicitGradientError(HamburgerError, ArithmeticError):
    """The implicit gradient (Proposition 2) is not accurate enough to use. `findings` holds the measurements."""

    def __init__(self, message: str, findings: dict[str, float] | None = None) -> None:
        super().__init__(message)
        self.findings = findings or {}


class RecomputationError(HamburgerError, RuntimeError):
    """Gradient checkpointing of a layer whose state at the first pass is no longer known."""


class ExportError(HamburgerError, RuntimeError):
    """A network that cannot be exported, or an exported graph whose outputs differ from the network's."""


class CheckpointError(HamburgerError, RuntimeError):
    """Weights or a checkpoint that cannot be read, or that belong to another network.

    `report` lists every key and its reason, where a load made one (`hamburger.checkpoints.load_hamburger`).
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message if report is None else f"{message}\n{report}")
        self.report = report


class TrainingError(HamburgerError, RuntimeError):
    """A training run that had to stop. Its saved files are intact."""


class Interrupted(HamburgerError):
    """A training run that was stopped by a signal and has saved a checkpoint."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: `; did you mean 'nmf'? known: cd, nmf, vq`."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name)[:80].lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ";"
    return f"{hint} known: {', '.join(known)}"


def name_lab_package(what: str) -> str:
    """Return the error message for something that needs the package hamburger-lab."""
    return f"{what} is part of hamburger-lab; run pip install -e lab in your clone of hamburger"


def install_extra(extra: str) -> str:
    """Return the command that installs an extra of this package."""
    return f"run pip install 'hamburger[{extra}]', in a clone pip install -e '.[{extra}]'"


_brief = reprlib.Repr()
_brief.maxlist = _brief.maxtuple = 12
_brief.maxstring = _brief.maxlong = _brief.maxother = 80


def shorten(value: object) -> str:
    """Return `repr(value)` for an error message, cut where it is long or nested."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print more than 4300 digits
        return f"a whole number of {value.bit_length()} bits"
    try:
        return _brief.repr(value)
    except (ValueError, RecursionError):  # of a number or a list inside
        return f"a {type(value).__name__} that cannot be printed"


def show(value: object) -> str:
    """Return `str(value)` for a message where it is short and can be printed, otherwise as `shorten` does."""
    text = shorten(value) if isinstance(value, (int, list, dict)) else str(value)
    return text if len(text) <= 80 and text.isprintable() else shorten(value)


def printable(text: str) -> str:
    """Return the text with escapes in place of control characters, which could change what a terminal shows."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def check_choice(call: str, option: str, value: object, known: Iterable[str]) -> None:
    """Raise unless the value is one of the known names."""
    known = list(known)
    if value not in known:
        name = value[:80] if isinstance(value, str) else ""
        raise OptionError(f"{call}: no {option} {shorten(value)}{did_you_mean(name, known)}")


def check_path(call: str, option: str, value: object) -> None:
    """Raise unless the value is a path that the system takes."""
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{call}: {option} must be a path, got {shorten(value)}")
    try:
        os.lstat(value)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            raise InputError(f"{call}: {option} is too long for a path, got {shorten(value)}") from None


def check_mapping(call: str, option: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a mapping as a dict, empty for None; raise for anything else."""
    if value is not None and not isinstance(value, Mapping):
        raise OptionError(f"{call}: {option} must be a mapping such as {{'rank': 8}}, got {shorten(value)}")
    return dict(value or {})


MAX_COUNT = 2**31 - 1  # of everything that is counted: steps, images, channels


def check_count(call: str, option: str, value: object, *, least: int, most: int = MAX_COUNT) -> None:
    """Raise unless the value is a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"{call}: {option} must be a whole number of at least {least}, got {shorten(value)}")
    if value > most:
        raise OptionError(f"{call}: {option} must be at most {most}, got {shorten(value)}")


def check_seed(call: str, value: object) -> None:
    """Raise unless the value is a whole number from 0 to 2^63 - 1."""
    check_count(call, "seed", value, least=0, most=2**63 - 1)


def check_flag(call: str, option: str, value: object) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{call}: {option} must be True or False, got {shorten(value)}")


def check_positive(call: str, option: str, value: object, *, zero: bool = False, most: float = math.inf) -> None:
    """Raise unless the value is a finite number above 0 (with `zero`: at least 0) and at most `most`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and (value >= 0 if zero else value > 0) and value < math.inf and value <= most):  # type: ignore[operator]
        rule = "at least 0" if zero else "above 0"
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise OptionError(f"{call}: {option} must be a finite number {rule}{upper}, got {shorten(value)}")
