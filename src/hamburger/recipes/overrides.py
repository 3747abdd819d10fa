"""Dotted changes to a recipe, as `--set` takes them: `model.context=vq`, `optim.lr=0.01`, `data.scales=0.5,2`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from hamburger.errors import OptionError, did_you_mean
from hamburger.recipes.base import Training
from hamburger.recipes.codec import cast, is_optional, required, spoken

Kind = TypeVar("Kind", bound=Training)

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def apply(recipe: Kind, settings: Iterable[str]) -> Kind:
    """A new recipe with each `path=value` set in turn; the value is read by the type of its field.

    Below a field of options, such as `model.context_options.rank=32`, any name goes and the value is read as it looks:
    a number, true or false, none, a list with commas, or text. JSON works too where plain text cannot say it.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise OptionError(f"--set takes path=value, such as optim.lr=0.01, got {setting!r}")
        recipe = _set(recipe, path.strip().split("."), text.strip(), path.strip())
    return recipe


def _set(group: Any, names: list[str], text: str, path: str) -> Any:
    """A copy of the dataclass `group` in which the field at `names` is `text`."""
    hints = get_type_hints(type(group))
    name, *rest = names
    if name not in hints:
        raise OptionError(f"--set {path}: no field '{name}'{did_you_mean(name, hints)}")
    kind, now = hints[name], getattr(group, name)
    if dataclasses.is_dataclass(kind):
        if not rest:
            fields = ", ".join(get_type_hints(kind))
            raise OptionError(f"--set {path}: '{name}' is a group; set one of its fields: {fields}")
        return dataclasses.replace(group, **{name: _set(now, rest, text, path)})
    if get_origin(kind) is dict:
        return dataclasses.replace(group, **{name: _entry(now, rest, text, path)})
    if rest:
        raise OptionError(f"--set {path}: '{name}' is {spoken(kind)} and has no field '{rest[0]}'")
    return dataclasses.replace(group, **{name: parse(kind, text, path)})


def _entry(options: dict[str, Any], names: list[str], text: str, path: str) -> dict[str, Any]:
    """A copy of `options` with one entry set, or all of them replaced."""
    if not names:
        whole = {} if text.lower() in ("", "none") else guess(text)
        if not isinstance(whole, dict):
            raise OptionError(f"--set {path}: takes options by name, such as {path}.rank=32, got {text!r}")
        return whole
    name, *rest = names
    if not rest:
        return {**options, name: guess(text)}
    inner = options.get(name, {})
    return {**options, name: _entry(inner if isinstance(inner, dict) else {}, rest, text, path)}


def parse(kind: Any, text: str, path: str) -> Any:
    """`text` as the type of a field."""
    if is_optional(kind):
        return None if text.lower() == "none" else parse(required(kind), text, path)
    if get_origin(kind) is tuple:
        kinds, parts = get_args(kind), text.strip("()[]").split(",")
        if len(parts) != len(kinds):
            raise OptionError(f"--set {path}: takes {len(kinds)} values with commas, got {text!r}")
        return tuple(parse(inner, part.strip(), path) for inner, part in zip(kinds, parts, strict=True))
    if kind is str:
        return text
    if kind is bool and text.lower() in TRUE + FALSE:
        return text.lower() in TRUE
    try:
        if kind in (int, float):
            return cast(kind, kind(text), path)
    except ValueError:
        pass
    raise OptionError(f"--set {path}: takes {spoken(kind)}, got {text!r}")


def guess(text: str) -> Any:
    """A value of no declared type, as it looks: 32, 0.5, true, none, a,b (a list), else text."""
    if text.startswith(("[", "{", '"')):
        try:
            return json.loads(text)
        except json.JSONDecodeError as mistake:
            raise OptionError(f"--set: {text!r} begins like JSON, but is none ({mistake})") from None
    if "," in text:
        return [guess(part.strip()) for part in text.split(",") if part.strip()]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
