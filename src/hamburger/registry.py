"""Registries from names to constructors, and errors that suggest the nearest known name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from hamburger.errors import HamburgerError, OptionError, UnknownNameError, did_you_mean, name_lab_package

T = TypeVar("T")
Constructor = TypeVar("Constructor", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")


def options_of(constructor: Callable[..., Any]) -> set[str]:
    """Return the names of the keywords that a constructor takes."""
    parameters = inspect.signature(constructor).parameters.values()
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {"self"}


def check_options(call: str, constructor: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise on an option that the constructor does not take. One with `**options` checks them itself."""
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(constructor).parameters.values()):
        return
    known = options_of(constructor)
    for option in options:
        if option not in known:
            raise OptionError(f"{call} has no option '{option}'{did_you_mean(option, known)}")


def explain_errors(call: str) -> Callable[[Callable[Parameters, T]], Callable[Parameters, T]]:
    """Decorator: errors name the public call, and that of an unknown keyword the nearest known one."""

    def decorate(function: Callable[Parameters, T]) -> Callable[Parameters, T]:
        @wraps(function)
        def checked(*args: Parameters.args, **options: Parameters.kwargs) -> T:
            try:
                check_options(call, function, options)
                return function(*args, **options)
            except HamburgerError as error:
                if not str(error).startswith(call):
                    error.args = (f"{call}: {error}",)
                raise
            except TypeError as error:  # options inside options, which recipes of others may hold
                if "got multiple values for" not in str(error):
                    raise
                raise OptionError(f"{call}: {error}, which cannot be set here; leave it out") from error

        return checked

    return decorate


class Registry(Mapping[str, Callable[..., T]]):
    """A mapping from names to the constructors of one kind of thing. A name cannot be registered twice.

    `lab_names`: names that hamburger-lab registers, for the error where it is not installed.

    >>> "nmf" in hb.hams.names()
    True
    >>> ham = hb.hams.create("vq", rank=4)
    >>> hb.contexts["sa"]
    <class 'hamburger.contexts.sa.SelfAttention'>
    """

    def __init__(self, kind: str, *, lab_names: Collection[str] = ()) -> None:
        self.kind, self.lab_names = kind, lab_names
        self._entries: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[Constructor], Constructor]:
        """Decorator: `@hams.register("mine")` above a class or a function that builds one."""

        def add(constructor: Constructor) -> Constructor:
            if name in self._entries:
                raise ValueError(
                    f"there is already a {self.kind} '{name}': {self._entries[name]!r}; choose another name"
                )
            self._entries[name] = constructor
            return constructor

        return add

    def create(self, name: str, /, *args: Any, **options: Any) -> T:
        """Build the named thing. An unknown option raises an error that suggests the nearest known one."""
        constructor = self[name]
        check_options(f"{self.kind} '{name}'", constructor, options)
        return constructor(*args, **options)

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._entries)

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name not in self._entries:
            if name in self.lab_names:
                raise UnknownNameError(name_lab_package(f"{self.kind} '{name}'"))
            raise UnknownNameError(f"no {self.kind} '{name}'{did_you_mean(name, self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:  # Mapping's would build the error message of __getitem__ first
        return name in self._entries
