"""An inserted context: the adapter between feature layouts, the gate, the hook that runs it, and where it is stored.

An inserted context is a child of the module it follows, so that it is moved, saved and copied with it.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hamburger.errors import InputError, ShapeError
from hamburger.insertion.dry_run import preserve_state
from hamburger.tensors import widen

Gate = Literal["zero", "one"]
GATES: dict[Gate, float] = {"zero": 0.0, "one": 1.0}
CHILD_NAME = "inserted_context"
NESTED_TENSORS = "nested tensors; build nn.TransformerEncoder with enable_nested_tensor=False"


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
    skipped: int = 0
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
            flat, cells = z.flatten(2), self.grid[0] * self.grid[1]
            tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
            if not tracing and flat.shape[2] != self.skipped + cells:  # the last h w would be the wrong ones
                raise ShapeError(
                    f"insert_context, '{self.place}': its context was inserted for a grid of {self.grid} after "
                    f"{self.skipped} other positions, {self.skipped + cells} in all (got {flat.shape[2]}); keep the "
                    "size of the input, or insert it again with an example= of this size and a matching grid"
                )
            skipped, tokens = flat[..., :-cells], flat[..., -cells:]
            y = context(tokens.unflatten(2, self.grid)).flatten(2)
            return torch.cat([skipped, y.to(skipped.dtype)], dim=2).unflatten(2, z.shape[2:])
        if self.takes == "tokens":
            return context(z.flatten(2).mT).mT.unflatten(2, z.shape[2:])
        if self.takes == "map" and z.dim() != 4:  # a context that ignores neighbourhood: one row of all positions
            return context(z.flatten(2).unsqueeze(3)).squeeze(3).unflatten(2, z.shape[2:])
        return context(z)


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

    def is_identity(self, x: Tensor) -> bool:
        """Whether the context starts as the identity, as those do whose last layer is initialised to zero.

        Tested on large numbers of both signs, since x may be all zero or may hide a ReLU. Tested in training mode too,
        where a dropout is not the identity.
        """
        if x.is_meta:  # there are no values to compare
            return False
        probe = 10 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        for training in (False, True):
            with preserve_state(self, training=training):
                try:
                    y = self.adapter.run(self.context, probe)
                except Exception:  # for example batch norm, which cannot train on a single value
                    return False
            if not torch.equal(y, probe):
                return False
        return True

    def extra_repr(self) -> str:
        grid = "" if self.adapter.grid is None else f", grid={self.adapter.grid}"
        return f"layout={self.adapter.layout}{grid}" + ("" if self.gate is None else ", gated")


def attach_context(module: nn.Module, inserted: InsertedContext) -> None:
    """Run a context after a module, before its other hooks: those then see the features with context."""
    module.add_module(CHILD_NAME, inserted)
    if isinstance(module, (nn.Sequential, nn.ModuleDict)):
        module.__class__ = _proxy_class(type(module))
    inserted.handle = module.register_forward_hook(run_context_hook, prepend=True)


def detach_context(module: nn.Module) -> None:
    """Undo `attach_context`."""
    inserted = module._modules.pop(CHILD_NAME)
    assert isinstance(inserted, InsertedContext)
    inserted.unhook()
    if isinstance(module, _ContextProxy):
        module.__class__ = module.shown  # type: ignore[assignment]


def holds_context(module: nn.Module) -> bool:
    # not .get: the children of a TorchScript module are not in a dict
    return CHILD_NAME in module._modules and isinstance(module._modules[CHILD_NAME], InsertedContext)


def run_context_hook(module: nn.Module, args: Any, output: Any) -> Any:
    """The forward hook. It finds the context in the module it is called for, so copies and pickles work."""
    inserted = module._modules[CHILD_NAME]
    assert isinstance(inserted, InsertedContext)
    part = inserted.adapter.output
    return inserted(output) if part is None else _replace_part(output, part, inserted(output[part]))


def _replace_part(output: Any, part: int | str, value: Tensor) -> Any:
    """Return a copy of a tuple, list or dict with one entry replaced."""
    if isinstance(output, tuple):
        entries: Any = list(output)
        entries[part] = value
        return type(output)(*entries) if hasattr(output, "_fields") else type(output)(entries)
    changed: Any = copy.copy(output) if isinstance(output, Mapping) else list(output)
    changed[part] = value
    return changed


# -- containers --------------------------------------------------------------------------------------------------------
# A container would treat its context as one of its members: `layer3[-1]` would be the context, and `for block in
# layer3` would call it. The proxy classes leave it out of length, iteration and indexing; all else is the original's.

_PROXY_CLASSES: dict[type[Any], type[Any]] = {}


class _ContextProxy:
    """Base of both proxies; `shown` is the original class, from which pickle and deepcopy make the proxy again."""

    shown: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new_proxy, (self.shown,), self.__getstate__()


class _SequentialProxy(_ContextProxy, nn.Sequential):
    def __len__(self) -> int:
        return len(_without_context(self._modules))

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(_without_context(self._modules).values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # a slice is a container of the original class, without the context
            return self.shown(OrderedDict(list(_without_context(self._modules).items())[index]))
        return list(self)[index]

    def __setitem__(self, index: int, module: nn.Module) -> None:
        with _set_context_aside(self):
            super().__setitem__(index, module)

    def __delitem__(self, index: Any) -> None:
        with _set_context_aside(self):
            super().__delitem__(index)

    def insert(self, index: int, module: nn.Module) -> Any:
        with _set_context_aside(self):
            return super().insert(index, module)


class _ModuleDictProxy(_ContextProxy, nn.ModuleDict):
    def __len__(self) -> int:
        return len(_without_context(self._modules))

    def __iter__(self) -> Iterator[str]:
        return iter(_without_context(self._modules))

    def __contains__(self, key: str) -> bool:
        return key in _without_context(self._modules)

    def keys(self) -> KeysView[str]:
        return _without_context(self._modules).keys()

    def items(self) -> ItemsView[str, nn.Module]:
        return _without_context(self._modules).items()

    def values(self) -> ValuesView[nn.Module]:
        return _without_context(self._modules).values()


def _without_context(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: module for name, module in modules.items() if name != CHILD_NAME}


@contextmanager
def _set_context_aside(module: nn.Module) -> Iterator[None]:
    """Remove the context while the container counts or renumbers its members, then put it back."""
    held = module._modules.pop(CHILD_NAME)
    try:
        yield
    finally:
        module._modules[CHILD_NAME] = held


def _proxy_class(shown: type[Any]) -> type[Any]:
    """Return the proxy class of a container class; it is made once and cached."""
    if shown not in _PROXY_CLASSES:
        kind = _SequentialProxy if issubclass(shown, nn.Sequential) else _ModuleDictProxy
        # with the original __module__: tools such as torch.fx decide by it which modules they trace into
        _PROXY_CLASSES[shown] = type(shown.__name__, (kind, shown), {"shown": shown, "__module__": shown.__module__})
    return _PROXY_CLASSES[shown]


def _new_proxy(shown: type[Any]) -> Any:
    return object.__new__(_proxy_class(shown))
