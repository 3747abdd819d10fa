"""Container classes that hide the context inserted into them.

An inserted context is a child of the module it follows, so that it is moved, saved and copied with it. A container
would treat that child as one of its members: `layer3[-1]` would be the context, and `for block in layer3` would call
it. The proxy classes here leave it out of length, iteration and indexing, and otherwise equal the original class.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from typing import Any

from torch import nn

CHILD_NAME = "inserted_context"
_PROXY_CLASSES: dict[type[Any], type[Any]] = {}


class _ContextProxy:
    """Base of both proxies. The class is made at run time; pickle and deepcopy make it again from `shown`."""

    shown: type[nn.Module]  # the original class

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


def hide_context(module: nn.Module) -> None:
    """Change the class of a container to the proxy that hides its context. Other modules are not changed."""
    if isinstance(module, (nn.Sequential, nn.ModuleDict)):
        set_class(module, _proxy_class(type(module)))


def restore_class(module: nn.Module) -> None:
    """Undo `hide_context`."""
    if isinstance(module, _ContextProxy):
        set_class(module, module.shown)


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


def set_class(module: nn.Module, kind: type[Any]) -> None:
    module.__class__ = kind


def _proxy_class(shown: type[Any]) -> type[Any]:
    """Return the proxy class of a container class; it is made once and cached."""
    if shown not in _PROXY_CLASSES:
        kind = _SequentialProxy if issubclass(shown, nn.Sequential) else _ModuleDictProxy
        # with the original __module__: tools such as torch.fx decide by it which modules they trace into
        _PROXY_CLASSES[shown] = type(shown.__name__, (kind, shown), {"shown": shown, "__module__": shown.__module__})
    return _PROXY_CLASSES[shown]


def _new_proxy(shown: type[Any]) -> Any:
    return object.__new__(_proxy_class(shown))
