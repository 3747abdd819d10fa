"""Containers that do not show the context they hold.

A context is registered as a child of the module it follows, so that it moves, saves and copies with it. A container
would run or count that child as one of its own: `layer3[-1]` would be the context, and `for block in layer3` would call
it. The classes here leave it out of length, iteration and indexing, and are otherwise the container they come from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from typing import Any

from torch import nn

NAME = "inserted_context"
_MADE: dict[type[Any], type[Any]] = {}


class _Hiding:
    """What both kinds share: a class made at run time, which pickle and deepcopy can make again."""

    shown: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank, (self.shown,), self.__getstate__()


class _HidingSequential(_Hiding, nn.Sequential):
    def __len__(self) -> int:
        return len(_without(self._modules))

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(_without(self._modules).values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # a part of the container is one without a context
            return self.shown(OrderedDict(list(_without(self._modules).items())[index]))
        return list(self)[index]

    def __setitem__(self, index: int, module: nn.Module) -> None:
        with _aside(self):
            super().__setitem__(index, module)

    def __delitem__(self, index: Any) -> None:
        with _aside(self):
            super().__delitem__(index)

    def insert(self, index: int, module: nn.Module) -> Any:
        with _aside(self):
            return super().insert(index, module)


class _HidingDict(_Hiding, nn.ModuleDict):
    def __len__(self) -> int:
        return len(_without(self._modules))

    def __iter__(self) -> Iterator[str]:
        return iter(_without(self._modules))

    def __contains__(self, key: str) -> bool:
        return key in _without(self._modules)

    def keys(self) -> KeysView[str]:
        return _without(self._modules).keys()

    def items(self) -> ItemsView[str, nn.Module]:
        return _without(self._modules).items()

    def values(self) -> ValuesView[nn.Module]:
        return _without(self._modules).values()


def hide_context(module: nn.Module) -> None:
    """Make a container one that does not show its context; other modules stay as they are."""
    if isinstance(module, (nn.Sequential, nn.ModuleDict)):
        set_class(module, _hiding(type(module)))


def show_all(module: nn.Module) -> None:
    """Give a container its own class back."""
    if isinstance(module, _Hiding):
        set_class(module, module.shown)


def _without(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: module for name, module in modules.items() if name != NAME}


@contextmanager
def _aside(module: nn.Module) -> Iterator[None]:
    """Take the context out while members are counted or numbered anew."""
    held = module._modules.pop(NAME)
    try:
        yield
    finally:
        module._modules[NAME] = held


def set_class(module: nn.Module, kind: type[Any]) -> None:
    module.__class__ = kind


def _hiding(shown: type[Any]) -> type[Any]:
    """The class that hides, made once for each kind of container."""
    if shown not in _MADE:
        kind = _HidingSequential if issubclass(shown, nn.Sequential) else _HidingDict
        # its module's name too: tools decide by it which modules they may look into
        _MADE[shown] = type(shown.__name__, (kind, shown), {"shown": shown, "__module__": shown.__module__})
    return _MADE[shown]


def _blank(shown: type[Any]) -> Any:
    return object.__new__(_hiding(shown))
