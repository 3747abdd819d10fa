"""A context in its place: the form it takes, the gate in front of it, and the hook that runs it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hamburger.errors import InputError, ShapeError
from hamburger.insertion.container_proxy import NAME, hide_context, show_all
from hamburger.literals import Gate
from hamburger.precision import widen

GATES: dict[Gate, float] = {"zero": 0.0, "one": 1.0}
NESTED = (
    "nested tensors, which nn.TransformerEncoder makes of padded sequences in evaluation; build it with "
    "enable_nested_tensor=False, or set its use_nested_tensor = False"
)


@dataclass(frozen=True)
class Form:
    """From what the network gives to what the context takes, and back.

    - `layout`: of the network: "channels", (b, c, *positions), "tokens", (b, *positions, c), or "sequence", (n, b, c).
    - `takes`: of the context: "same", "channels", "tokens" (b, n, c), or "map" (b, c, h, w).
    - `grid`: the last h w positions as a map; those before them (a class token) pass by.
    - `output`: which part of an output that is a tuple, a list or a dict.
    - `aside`, `place`: how many positions pass by a grid, and where, for the message when others come.
    """

    layout: str
    takes: str
    grid: tuple[int, int] | None = None
    output: int | str | None = None
    aside: int | None = None
    place: str = ""

    def run(self, context: nn.Module, x: Tensor) -> Tensor:
        if self.takes == "same":
            return context(x)
        if self.layout == "sequence":
            return self._run(context, x.movedim(0, 2)).movedim(2, 0)
        z = x.movedim(-1, 1) if self.layout == "tokens" else x  # b c *positions
        y = self._run(context, z)
        return y.movedim(1, -1) if self.layout == "tokens" else y

    def _run(self, context: nn.Module, z: Tensor) -> Tensor:
        if self.grid is not None:
            flat = z.flatten(2)
            self._check_count(flat.shape[2])
            aside, seen = flat[..., : -self.grid[0] * self.grid[1]], flat[..., -self.grid[0] * self.grid[1] :]
            y = context(seen.unflatten(2, self.grid)).flatten(2)
            return torch.cat([aside, y.to(aside.dtype)], dim=2).unflatten(2, z.shape[2:])
        if self.takes == "tokens":
            return context(z.flatten(2).mT).mT.unflatten(2, z.shape[2:])
        if self.takes == "map" and z.dim() != 4:  # a context that looks at no neighbours: positions are one long row
            return context(z.flatten(2).unsqueeze(3)).squeeze(3).unflatten(2, z.shape[2:])
        return context(z)

    def _check_count(self, n: int) -> None:
        """Another number of positions is another map, of which the last h w would be any."""
        tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if self.grid is None or self.aside is None or tracing:
            return
        if n != self.aside + self.grid[0] * self.grid[1]:
            raise ShapeError(
                f"insert_context, '{self.place}': {n} positions came, and its context was put in for a grid of "
                f"{self.grid} behind {self.aside} that pass by; keep the size of the input, or put it in again with "
                "an example= of this one and its own grid"
            )


class InsertedContext(nn.Module):
    """x + gate (context(x) - x): with the gate at 0 the network as it was, at 1 the context alone.

    It is a child, `inserted_context`, of the module it follows.
    """

    def __init__(self, context: nn.Module, *, gate: Gate | None, form: Form) -> None:
        super().__init__()
        self.context, self.form = context, form
        self.gate = None if gate is None else nn.Parameter(torch.tensor(GATES[gate]))
        # kept for the way back, and because unpickling it keeps later hooks from taking the number of this one
        self.handle: RemovableHandle | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.is_nested:
            raise InputError(f"insert_context: a context cannot take {NESTED}")
        y = self.form.run(self.context, x)
        if self.gate is not None:
            wide = widen(x)  # the gradient of a scalar is a sum over the whole map
            y = wide + self.gate * (widen(y) - wide)
        return y.to(x.dtype)

    def unhook(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def extra_repr(self) -> str:
        grid = "" if self.form.grid is None else f", grid={self.form.grid}"
        return f"layout={self.form.layout}{grid}" + ("" if self.gate is None else ", gated")


def attach(module: nn.Module, inserted: InsertedContext) -> None:
    """Have a context run after a module, in front of other hooks: what looks at features sees them with context."""
    module.add_module(NAME, inserted)
    hide_context(module)
    inserted.handle = module.register_forward_hook(run_after, prepend=True)


def detach(module: nn.Module) -> None:
    inserted = module._modules[NAME]
    assert isinstance(inserted, InsertedContext)
    inserted.unhook()
    show_all(module)
    del module._modules[NAME]


def holds_context(module: nn.Module) -> bool:
    # not .get: a module of TorchScript has its children in something else than a dict
    return NAME in module._modules and isinstance(module._modules[NAME], InsertedContext)


def run_after(module: nn.Module, args: Any, output: Any) -> Any:
    """The hook. It finds its context in the module it is called for: copies and pickles need nothing else."""
    inserted = module._modules[NAME]
    assert isinstance(inserted, InsertedContext)
    part = inserted.form.output
    if part is None:
        return inserted(output)
    return with_part(output, part, inserted(output[part]))


def with_part(output: Any, part: int | str, value: Tensor) -> Any:
    """A tuple, list or dict of the same kind with one entry exchanged."""
    if isinstance(output, tuple):
        entries: Any = list(output)
        entries[part] = value
        return type(output)(*entries) if hasattr(output, "_fields") else type(output)(entries)
    changed: Any = copy.copy(output) if isinstance(output, Mapping) else list(output)
    changed[part] = value
    return changed
