"""Options that are lists: what stands between commas."""

from __future__ import annotations

from hamburger.errors import OptionError


def words(text: str) -> tuple[str, ...]:
    """`nmf, sa` as names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str, call: str = "bench", option: str = "sizes") -> tuple[int, ...]:
    """`1024,4096` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{call}: {option} are whole numbers with commas between, got {text!r}") from None


def decimals(text: str, call: str) -> tuple[float, ...]:
    """`0.5,1` as numbers, the scales of a protocol."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"{call}: scales are numbers with commas between, such as 0.5,1,1.5; got {text!r}") from None
