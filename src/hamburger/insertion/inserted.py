"""An inserted context: the adapter between feature layouts, the gate, and the hook that runs it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hamburger.errors import InputError, ShapeError
from hamburger.insertion.container_proxy import CHILD_NAME, hide_context, restore_class
from hamburger.literals import Gate
from hamburger.tensors import widen

GATES: dict[Gate, float] = {"zero": 0.0, "one": 1.0}
NESTED_TENSORS = (
    "nested tensors, which nn.TransformerEncoder makes from padded sequences in evaluation; build it with "
    "enable_nested_tensor=False, or set its use_nested_tensor = False"
)


@dataclass(frozen=True)
class FeatureAdapter:
    """Converts features from the layout of the network to that of the context, and back.

    - `layout`: of the network: "channels", (b, c, *positions), "tokens", (b, *positions, c), or "sequence", (n, b, c).
    - `takes`: of the context: "same", "channels", "tokens" (b, n, c), or "map" (b, c, h, w).
    - `grid`: read the last h w positions as a map; the positions before them (class tokens) are not changed.
    - `output`: the entry to use where the module returns a tuple, a list or a dict.
    - `skipped`, `place`: the number of positions before the grid and the module's name, for error messages.
    """

    layout: str
    takes: str
    grid: tuple[int, int] | None = None
    output: int | str | None = None
    skipped: int | None = None
    place: str = ""

    def run(self, context: nn.Module, x: Tensor) -> Tensor:
        """Return context(x), in the layout of x."""
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
            skipped, tokens = flat[..., : -self.grid[0] * self.grid[1]], flat[..., -self.grid[0] * self.grid[1] :]
            y = context(tokens.unflatten(2, self.grid)).flatten(2)
            return torch.cat([skipped, y.to(skipped.dtype)], dim=2).unflatten(2, z.shape[2:])
        if self.takes == "tokens":
            return context(z.flatten(2).mT).mT.unflatten(2, z.shape[2:])
        if self.takes == "map" and z.dim() != 4:  # a context that ignores neighbourhood: one row of all positions
            return context(z.flatten(2).unsqueeze(3)).squeeze(3).unflatten(2, z.shape[2:])
        return context(z)

    def _check_count(self, n: int) -> None:
        """Raise on another number of positions than at insertion: the last h w would be the wrong ones."""
        tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if self.grid is None or self.skipped is None or tracing:
            return
        expected = self.skipped + self.grid[0] * self.grid[1]
        if n != expected:
            raise ShapeError(
                f"insert_context, '{self.place}': its context was inserted for a grid of {self.grid} after "
                f"{self.skipped} other positions, {expected} in all (got {n}); keep the size of the input, or insert "
                "it again with an example= of this size and a matching grid"
            )


class InsertedContext(nn.Module):
    """x + gate (context(x) - x): the network is unchanged at gate 0, and sees the context alone at gate 1.

    It is registered as the child `inserted_context` of the module it follows.
    """

    def __init__(self, context: nn.Module, *, gate: Gate | None, adapter: FeatureAdapter) -> None:
        super().__init__()
        self.context, self.adapter = context, adapter
        self.gate = None if gate is None else nn.Parameter(torch.tensor(GATES[gate]))
        # needed to remove the hook; and unpickling it keeps later hooks from reusing its number
        self.handle: RemovableHandle | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.is_nested:
            raise InputError(f"insert_context: a context cannot take {NESTED_TENSORS}")
        y = self.adapter.run(self.context, x)
        if self.gate is not None:
            wide = widen(x)  # the gradient of a scalar is a sum over the whole map
            y = wide + self.gate * (widen(y) - wide)
        return y.to(x.dtype)

    def unhook(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def extra_repr(self) -> str:
        grid = "" if self.adapter.grid is None else f", grid={self.adapter.grid}"
        return f"layout={self.adapter.layout}{grid}" + ("" if self.gate is None else ", gated")


def attach_context(module: nn.Module, inserted: InsertedContext) -> None:
    """Run a context after a module, before its other hooks: those then see the features with context."""
    module.add_module(CHILD_NAME, inserted)
    hide_context(module)
    inserted.handle = module.register_forward_hook(run_context_hook, prepend=True)


def detach_context(module: nn.Module) -> None:
    """Undo `attach_context`."""
    inserted = module._modules[CHILD_NAME]
    assert isinstance(inserted, InsertedContext)
    inserted.unhook()
    restore_class(module)
    del module._modules[CHILD_NAME]


def holds_context(module: nn.Module) -> bool:
    # not .get: the children of a TorchScript module are not in a dict
    return CHILD_NAME in module._modules and isinstance(module._modules[CHILD_NAME], InsertedContext)


def run_context_hook(module: nn.Module, args: Any, output: Any) -> Any:
    """The forward hook. It finds the context in the module it is called for, so copies and pickles work."""
    inserted = module._modules[CHILD_NAME]
    assert isinstance(inserted, InsertedContext)
    part = inserted.adapter.output
    if part is None:
        return inserted(output)
    return replace_part(output, part, inserted(output[part]))


def replace_part(output: Any, part: int | str, value: Tensor) -> Any:
    """Return a copy of a tuple, list or dict with one entry replaced."""
    if isinstance(output, tuple):
        entries: Any = list(output)
        entries[part] = value
        return type(output)(*entries) if hasattr(output, "_fields") else type(output)(entries)
    changed: Any = copy.copy(output) if isinstance(output, Mapping) else list(output)
    changed[part] = value
    return changed
