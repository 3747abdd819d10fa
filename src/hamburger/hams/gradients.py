"""Gradient strategies: how a solve is differentiated. A strategy changes the gradient, never the value.

Each strategy runs K steps from initial factors and decides which of them autograd records. `readout` follows outside
and always carries gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hamburger.errors import OptionError, check_count, did_you_mean
from hamburger.hams.base import Factors, Ham


class Gradient(Protocol):
    """A strategy. `start()` makes the initial factors from x; the strategy calls it inside or outside the graph."""

    def __call__(self, ham: Ham, x: Tensor, start: Callable[[], Factors], steps: int) -> Factors: ...


@dataclass(frozen=True)
class Truncated:
    """Keep the graph of the last `keep` steps; the initial factors and the earlier steps are constants.

    `keep=1` is Eq. 13 read literally on (D, C); `keep=0`, named `one_step`, is what the authors' code does: only the
    read-out of the codes carries gradient. Memory does not grow with the number of steps.
    """

    keep: int

    def __post_init__(self) -> None:
        check_count("Truncated", "keep", self.keep, least=0)

    def __call__(self, ham: Ham, x: Tensor, start: Callable[[], Factors], steps: int) -> Factors:
        keep = min(self.keep if ham.readout_updates else max(1, self.keep), steps)
        with torch.no_grad():
            factors = ham.solve(x, start(), steps - keep)
        return ham.solve(x, factors, keep) if keep else factors

    def __str__(self) -> str:
        return f"truncated:{self.keep}" if self.keep else "one-step"


@dataclass(frozen=True)
class BPTT:
    """Back-propagation through all steps, including the initial codes and given bases (Eq. 12)."""

    def __call__(self, ham: Ham, x: Tensor, start: Callable[[], Factors], steps: int) -> Factors:
        return ham.solve(x, start(), steps)

    def __str__(self) -> str:
        return "bptt"


one_step = Truncated(keep=0)
bptt = BPTT()


def as_gradient(grad: str | Gradient) -> Gradient:
    """A strategy from its name: "one-step", "bptt", "truncated:2", "implicit"; a strategy is returned as it is."""
    from hamburger.hams.implicit import Implicit

    if isinstance(grad, (Truncated, BPTT, Implicit)) or (callable(grad) and not isinstance(grad, (str, type))):
        return grad
    if grad == "implicit":
        return Implicit()
    named: dict[str, Gradient] = {str(one_step): one_step, str(bptt): bptt}
    if grad in named:
        return named[grad]
    name, _, keep = str(grad).partition(":")
    if name == "truncated" and keep.isdecimal():
        return Truncated(int(keep))
    raise OptionError(f"no gradient {grad!r}{did_you_mean(str(grad), [*named, 'implicit', 'truncated:1'])}")
