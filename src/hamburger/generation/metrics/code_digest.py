"""What a module does besides its weights, as one hash: the source of its classes and the plain values that it holds.

Kept numbers of a person's own network are good only as long as its code is. That of torch, torchvision, timm and numpy
is known by their versions; all other code by the files it lies in and, where these are a person's own and not
installed, by those that they import from.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

LIBRARIES = ("torch", "torchvision", "timm", "numpy")
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, np.dtype, types.EllipsisType)
OWN_FIELDS = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}  # weights, and what torch notes


class NoSource(Exception):
    """Something whose code or value cannot be had; its text says what."""


def code_digest(network: nn.Module) -> str:
    """SHA-256 of a network's code and plain values, its parameters and buffers left out; NoSource where it has none."""
    walk = _Walk()
    walk.value(network)
    return walk.digest.hexdigest()


class _Walk:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.seen: dict[int, tuple[int, object]] = {}  # held, so that no number is given to anything else
        self.files: set[str] = set()
        self.say(*sys.version_info[:3])
        for name in LIBRARIES:
            self.say(name, getattr(sys.modules.get(name), "__version__", ""))

    def say(self, *words: object) -> None:
        for word in words:
            content = word if isinstance(word, bytes) else str(word).encode()
            self.digest.update(b"%d:" % len(content) + content)

    def value(self, value: Any) -> None:
        self.say(type(value).__qualname__)
        if isinstance(value, PLAIN):
            self.say(repr(value))
            return
        if id(value) in self.seen:  # also where it holds itself
            self.say("again", self.seen[id(value)][0])
            return
        self.seen[id(value)] = (len(self.seen), value)
        match value:
            case Tensor():
                kept = value.detach().cpu().contiguous()
                self.say(kept.dtype, tuple(kept.shape), kept.flatten().view(torch.uint8).numpy().tobytes())
            case np.ndarray() | np.generic() if value.dtype != object:
                self.say(value.dtype, value.shape, value.tobytes())
            case enum.Enum():
                self.say(value.name)
                self.kind(type(value))
            case os.PathLike():
                self.say(os.fspath(value))
            case dict() | types.MappingProxyType():
                self.all(entry for pair in value.items() for entry in pair)
            case set() | frozenset() if all(isinstance(each, PLAIN) for each in value):
                self.all(sorted(value, key=repr))
            case list() | tuple() | deque():
                self.all(value)
            case functools.partial():
                self.all((value.func, value.args, value.keywords))
            case types.MethodType():
                self.all((value.__func__, value.__self__))
            case types.FunctionType():
                self.function(value)
            case types.BuiltinFunctionType() | types.ModuleType():
                self.say(value.__name__)
            case type():
                self.kind(value)
            case torch.jit.ScriptModule() | torch.jit.ScriptFunction():
                raise NoSource("it has a scripted part")
            case nn.Module():
                self.module(value)
            case _:
                self.thing(value)

    def all(self, values: Iterable[Any]) -> None:
        for each in values:
            self.value(each)
        self.say("end")

    def module(self, module: nn.Module) -> None:
        if isinstance(module, fx.GraphModule):  # its class is made on the spot, and its fields are the graph's
            self.say(module.code)
            self.all(dict(module.named_children()).items())
            return
        self.kind(type(module))
        self.all((name, value) for name, value in vars(module).items() if name not in OWN_FIELDS)
        self.all(dict(module.named_children()).items())

    def thing(self, value: Any) -> None:
        """Any other object, by its class and what is in its fields."""
        if not hasattr(value, "__dict__"):
            raise NoSource(f"it holds a {type(value).__name__}, which cannot be looked into")
        self.kind(type(value))
        self.all(vars(value).items())

    def kind(self, kind: type) -> None:
        for each in kind.__mro__:
            self.say(each.__module__, each.__qualname__)
            if not _known(each.__module__):
                self.source(each)
                for held in vars(each).values():
                    if isinstance(held, types.FunctionType) and held.__closure__:
                        self.cells(held)

    def function(self, function: types.FunctionType) -> None:
        self.say(function.__module__, function.__qualname__, function.__code__.co_firstlineno)
        if not _known(function.__module__):
            self.source(function)
            self.all((function.__defaults__, function.__kwdefaults__))
            self.cells(function)

    def cells(self, function: types.FunctionType) -> None:
        """What it took from around it."""
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:  # not filled yet
                self.say("empty")

    def source(self, made: Any) -> None:
        """All of the file it is in, for the helpers there; else its own text, as of a notebook."""
        module = sys.modules.get(made.__module__)
        if module is not None and (path := _text_file(module)):
            self.file(module, path)
            return
        try:
            self.say(inspect.getsource(made))
        except (OSError, TypeError):
            raise NoSource(f"the source of {made.__qualname__} is not to be found") from None

    def file(self, module: types.ModuleType, path: str) -> None:
        if path in self.files:
            return
        self.files.add(path)
        try:
            self.say(module.__name__, Path(path).read_bytes())
        except OSError:
            raise NoSource(f"the source of {module.__name__} is not to be found") from None
        if _installed(path):
            return
        for name, value in sorted(vars(module).items()):
            if type(value) in (bool, int, float, str) and not name.startswith("__"):  # it may come from anywhere
                self.say(name, repr(value))
            home = getattr(value, "__module__", None)
            other = (
                value if isinstance(value, types.ModuleType) else sys.modules.get(home) if type(home) is str else None
            )
            beside = _text_file(other)
            if other is not None and beside and not _installed(beside):
                self.file(other, beside)


def _text_file(module: types.ModuleType | None) -> str | None:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") else None


def _known(name: str | None) -> bool:
    """Whether the version says it all."""
    top = (name or "").partition(".")[0]
    path = getattr(sys.modules.get(name or ""), "__file__", None)
    return top in LIBRARIES or (top in sys.stdlib_module_names and (path is None or _installed(path)))


@functools.cache
def _installed(path: str) -> bool:
    """Of Python itself or of a package, which nobody edits between two calls."""
    paths = sysconfig.get_paths()
    places = {os.path.realpath(paths[name]) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    here = os.path.realpath(path)
    return any(here.startswith(place) for place in places)
