"""Recipes as JSON, their digest, and dotted overrides as `--set` takes them."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hamburger.errors import OptionError, did_you_mean
from hamburger.training.recipe import LATE, Training

Group = TypeVar("Group")
Kind = TypeVar("Kind", bound=Training)


def to_json(recipe: Training) -> str:
    return json.dumps(dataclasses.asdict(recipe), indent=2) + "\n"


def read_recipe(text: str, kind: type[Kind]) -> Kind:
    """The recipe of the given class that `to_json` wrote."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as mistake:
        raise OptionError(f"recipe: not valid JSON ({mistake}); expected a run's recipe.json") from None
    return build(kind, values, "recipe")


def digest(recipe: Training) -> str:
    """Sixteen hexadecimal digits, the same for equal recipes."""
    plain = json.dumps(_set_fields(recipe), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def _set_fields(group: Any) -> dict[str, Any]:
    """Fields and their values, without those added later and still at their default."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if LATE in field.metadata and value == field.default:
            continue
        values[field.name] = _set_fields(value) if dataclasses.is_dataclass(value) else value
    return values


def flat(recipe: Training) -> dict[str, Any]:
    """Fields by their dotted names, as `--set` takes them."""
    fields: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        elif value != {}:
            fields[prefix] = value

    walk("", json.loads(to_json(recipe)))
    return fields


def differences(one: Training, other: Training) -> list[str]:
    """Such as `optim.lr: 0.009 here, 0.01 there`, for every field that differs."""
    here, there = flat(one), flat(other)
    return [
        f"{name}: {here.get(name, 'not set')} here, {there.get(name, 'not set')} there"
        for name in sorted({*here, *there})
        if name not in here or name not in there or here[name] != there[name]
    ]


def override(recipe: Kind, changes: Mapping[str, Any]) -> Kind:
    """Return a copy of the recipe with new values of the fields in `changes`, by their dotted names."""
    values = json.loads(to_json(recipe))
    for path, value in changes.items():
        group, (*groups, name) = values, path.split(".")
        for key in groups:
            group = group.setdefault(key, {})
            if not isinstance(group, dict):
                raise OptionError(f"recipe: '{key}' in '{path}' is not a group (got {group!r}); set '{key}' itself")
        group[name] = value
    return build(type(recipe), values, "recipe") if changes else recipe


def build(kind: type[Group], values: object, place: str) -> Group:
    """A dataclass from plain values, each checked against the type of its field."""
    if not isinstance(values, Mapping):
        raise OptionError(f"{place}: takes named fields, got {values!r}")
    hints = get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise OptionError(f"{place} has no field '{name}'{did_you_mean(str(name), hints)}")
    made = {name: cast(hints[name], value, f"{place}.{name}") for name, value in values.items()}
    try:
        return kind(**made)
    except TypeError as mistake:  # a field without a default is missing
        raise OptionError(f"{place}: {mistake}") from None


def cast(kind: Any, value: Any, place: str) -> Any:
    """`value`, as plain JSON has it, as the type of its field."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, place)
    if is_optional(kind):
        return None if value is None else cast(required(kind), value, place)
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        kinds = get_args(kind)
        if len(value) != len(kinds):
            raise OptionError(f"{place}: takes {len(kinds)} values, got {len(value)}: {value}")
        return tuple(cast(inner, part, place) for inner, part in zip(kinds, value, strict=True))
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return json.loads(json.dumps(value))  # tuples become lists here, so that they do not do so later
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    raise OptionError(f"{place}: takes {describe_type(kind)}, got {value!r}")


def is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind)


def required(kind: Any) -> Any:
    """`str` of `str | None`."""
    return next(part for part in get_args(kind) if part is not type(None))


def describe_type(kind: Any) -> str:
    """A type in words."""
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if is_optional(kind):
        return f"{describe_type(required(kind))} or none"
    if get_origin(kind) is tuple:
        return f"{len(get_args(kind))} comma-separated values"
    return words.get(kind, "named options")


# -- overrides as `--set` takes them: `model.context=vq`, `optim.lr=0.01`, `data.scales=0.5,2` -------------------------

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def apply(recipe: Kind, settings: Iterable[str]) -> Kind:
    """A new recipe with each `path=value` set in turn; the value is read by the type of its field.

    Below a field of options, such as `model.context_options.rank=32`, any name goes and the value is read as it looks:
    a number, true or false, none, a comma-separated list, or text. JSON works too.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise OptionError(f"--set takes path=value, such as optim.lr=0.01, got {setting!r}")
        _check_path(type(recipe), path.strip().split("."), setting)
        recipe = _set(recipe, path.strip().split("."), text.strip(), path.strip())
    return recipe


def _check_path(recipe: type, names: list[str], setting: str) -> None:
    """Raise on a name that is not a field; suggest the nearest dotted path."""
    group: Any = recipe
    for name in names:
        hints = get_type_hints(group)
        if name not in hints:
            raise OptionError(f"--set {setting}: no field '{name}'{_suggest(recipe, names)}")
        group = hints[name]
        if not dataclasses.is_dataclass(group):
            return


def _suggest(recipe: type, names: list[str]) -> str:
    """` (did you mean optim.lr?)` for `lr`: the same name in another group first, then similar spellings."""
    paths = list(_paths(recipe))
    nearest = [path for path in paths if path.split(".")[-1] == names[-1]]
    nearest = nearest or difflib.get_close_matches(".".join(names), paths, n=1, cutoff=0.5)
    if not nearest:
        last_names = {path.split(".")[-1]: path for path in reversed(paths)}
        nearest = [last_names[name] for name in difflib.get_close_matches(names[-1], last_names, n=1, cutoff=0.5)]
    return f" (did you mean {' or '.join(nearest)}?)" if nearest else f"; fields: {', '.join(paths)}"


def _paths(group: Any) -> Iterator[str]:
    """Dotted names of all fields, those of groups included."""
    for name, kind in get_type_hints(group).items():
        if dataclasses.is_dataclass(kind):
            yield from (f"{name}.{path}" for path in _paths(kind))
        else:
            yield name


def _set(group: Any, names: list[str], text: str, path: str) -> Any:
    """A copy of the dataclass `group` in which the field at `names` is `text`."""
    hints = get_type_hints(type(group))
    name, *rest = names
    kind, now = hints[name], getattr(group, name)
    if dataclasses.is_dataclass(kind):
        if not rest:
            fields = ", ".join(get_type_hints(kind))
            raise OptionError(f"--set {path}: '{name}' is a group; set one of its fields: {fields}")
        return dataclasses.replace(group, **{name: _set(now, rest, text, path)})
    if get_origin(kind) is dict:
        return dataclasses.replace(group, **{name: _entry(now, rest, text, path)})
    if rest:
        raise OptionError(f"--set {path}: '{name}' is {describe_type(kind)} and has no field '{rest[0]}'")
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
            raise OptionError(f"--set {path}: takes {len(kinds)} comma-separated values, got {text!r}")
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
    raise OptionError(f"--set {path}: takes {describe_type(kind)}, got {text!r}")


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
