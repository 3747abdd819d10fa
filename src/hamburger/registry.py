"""One registry per axis: a name, a constructor, and an error that finds the name a person meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from hamburger.errors import OptionError, UnknownNameError, did_you_mean

T = TypeVar("T")
Constructor = TypeVar("Constructor", bound=Callable[..., Any])


def options_of(constructor: Callable[..., Any]) -> set[str]:
    """The keywords that a constructor names."""
    parameters = inspect.signature(constructor).parameters.values()
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def check_options(call: str, constructor: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise on an option that the constructor does not name; one that takes ** checks what it passes on itself."""
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(constructor).parameters.values()):
        return
    known = options_of(constructor)
    for option in options:
        if option not in known:
            raise OptionError(f"{call} has no option '{option}'{did_you_mean(option, known)}")


class Registry(Mapping[str, Callable[..., T]]):
    """Names to constructors of one kind of thing. A name is given once and never changes its meaning."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[Constructor], Constructor]:
        """Decorator: `@hams.register("mine")` above a class or a function that builds one."""

        def add(constructor: Constructor) -> Constructor:
            if name in self._entries:
                raise ValueError(f"there is already a {self.kind} '{name}': {self._entries[name]!r}")
            self._entries[name] = constructor
            return constructor

        return add

    def create(self, name: str, *args: Any, **options: Any) -> T:
        """Build the named thing; an option it does not have raises with the nearest one it has."""
        constructor = self[name]
        check_options(f"{self.kind} '{name}'", constructor, options)
        return constructor(*args, **options)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name not in self._entries:
            raise UnknownNameError(f"no {self.kind} '{name}'{did_you_mean(name, self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:  # Mapping's own would catch our KeyError: same answer, but slower
        return name in self._entries
