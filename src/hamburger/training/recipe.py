"""Recipes: the fields that all of them share, their checks, JSON, digest, and `--set` overrides."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hamburger.checkpoints.weights_file import check_model_options
from hamburger.errors import (
    OptionError,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    check_seed,
    did_you_mean,
    shorten,
    show,
)
from hamburger.files import encode_json, parse_json

ADDED_LATER = "late"  # marks fields added later: at their default they do not change a recipe's digest
MAX_DEPTH = 16  # of options inside options


@dataclass(frozen=True)
class Optim:
    """SGD in three groups: weights (decayed), norms and gates (not), biases (not, at `bias_lr` times lr).

    `kind="adamw"` is AdamW with the same groups; `momentum` is then beta1, and beta2 is 0.999.
    """

    lr: float = 9e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    bias_lr: float = 2.0
    power: float = 0.9  # of the poly schedule
    warmup: int = 0  # steps
    # upper bound on the norm of all gradients together; None: no clipping
    clip: float | None = field(default=None, metadata={ADDED_LATER: True})
    kind: str = field(default="sgd", metadata={ADDED_LATER: True})


@dataclass(frozen=True)
class AdamOptim:
    """AdamW with the same schedule; without `weight_decay` it is Adam. A `power` of 0 keeps the rate constant."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0  # of weights, not of norms, gates and biases
    power: float = 0.9
    warmup: int = 0
    clip: float | None = field(default=None, metadata={ADDED_LATER: True})


@dataclass(frozen=True)
class Training:
    """The fields of every recipe, whatever it trains."""

    name: str
    batch: int = 16  # the global batch, over all processes and micro-batches
    accumulate: int = 1
    steps: int = 30_000
    precision: str = "32"  # 32, bf16 or fp16
    sync_bn: bool = True
    channels_last: bool = False
    compile: bool = False
    checkpoint_every: int = 1_000
    log_every: int = 20
    tensorboard: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) > 100 or not self.name.isprintable():
            raise OptionError(f"recipe: name takes up to 100 printable characters, got {shorten(self.name)}")


@dataclass(frozen=True)
class DataOptions:
    """The fields that the `data` of every supervised recipe has."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    train_split: str = "train"
    val_split: str = "val"
    flip: bool = True  # mirror half of the images
    workers: int = 4
    resident: str = "auto"  # keep the whole set on the device: "auto", "yes" or "no"


class SupervisedTraining(Training):
    """The further fields of supervised recipes; the recipe dataclass of each task declares them."""

    model: Any  # options of the network, at least `context` and `context_options`
    data: Any  # a DataOptions
    optim: Any  # Optim (SGD) or AdamOptim
    eval_every: int
    keep: str


def read_device(recipe: Callable[..., object]) -> str | None:
    """The device that a registered recipe is meant for, from `Device: CPU.` in its docstring."""
    device = re.search(r"Device: (\w+)\.", recipe.__doc__ or "")
    return device[1] if device else None


def find_recipes(recipes: Mapping[str, Callable[..., Any]], device: str, data: str) -> list[str]:
    """Names of the recipes for a device: those that read the data set, or all where none does."""
    names = [name for name, recipe in recipes.items() if read_device(recipe) == device]
    return [name for name in names if recipes[name]().data.name == data] or names


Group = TypeVar("Group")
Recipe = TypeVar("Recipe", bound=Training)


# -- checks before any work --------------------------------------------------------------------------------------------


def check_training(recipe: Training, *, processes: int = 1) -> None:
    """Raise OptionError on the first shared field whose value cannot work."""
    call = f"recipe '{recipe.name}'"
    _build(type(recipe), dataclasses.asdict(recipe), call)  # a recipe made in Python may hold anything
    check_count("train", "the number of processes", processes, least=1)
    for name in ("batch", "accumulate", "steps", "checkpoint_every", "log_every"):
        check_count(call, name, getattr(recipe, name), least=1)
    for name in ("sync_bn", "channels_last", "compile", "tensorboard"):
        check_flag(call, name, getattr(recipe, name))
    check_seed(call, recipe.seed)
    check_choice(call, "precision", recipe.precision, ("32", "bf16", "fp16"))
    shares = processes * recipe.accumulate
    if recipe.batch % shares:
        raise OptionError(
            f"{call}: batch {recipe.batch} does not divide into {processes} processes times {recipe.accumulate} "
            f"micro-batches; --set batch={-(-recipe.batch // shares) * shares}, a multiple of {shares}"
        )


def check_two_at_once(recipe: Training, *, processes: int) -> None:
    """Raise where a micro-batch has one image: batch norm over a single value is always zero."""
    shares = processes * recipe.accumulate
    if recipe.batch // shares < 2:
        raise OptionError(
            f"recipe '{recipe.name}': batch norm needs two images at once, and batch {recipe.batch} in {processes} "
            f"processes of {recipe.accumulate} micro-batches is less; --set batch={2 * shares}"
        )


def check_supervised(recipe: SupervisedTraining, *, processes: int) -> str:
    """Raise OptionError for the first invalid field that all tasks have; return the prefix of error messages."""
    call = f"recipe '{recipe.name}'"
    check_training(recipe, processes=processes)
    check_count(call, "eval_every", recipe.eval_every, least=1)
    check_choice(call, "keep", recipe.keep, ("best", "last"))
    check_data(call, recipe.data)
    _check_optim(call, recipe.optim)
    # a recipe may come from anybody, and timm opens any file or address that its options name
    model = {**dataclasses.asdict(recipe.model), "task": getattr(recipe, "task", None), "pretrained": None}
    try:
        check_model_options(model)
    except ValueError as error:
        raise OptionError(f"{call}: model: {error}") from None
    return call


def check_data(call: str, data: Any) -> None:
    """Check the fields that the `data` of every recipe has."""
    check_count(call, "data.workers", data.workers, least=0)
    check_flag(call, "data.flip", data.flip)
    check_choice(call, "data.resident", data.resident, ("auto", "yes", "no"))
    check_data_options(call, data.options)


RESERVED = ("known", "name", "split", "root")  # arguments of `create_from_registry`, set by --dataset, --split, --data
LARGEST_OPTIONS = {"length": 2**20, "seed": 2**63 - 1, "shapes": 256, "planes": 256}


def check_data_options(call: str, options: Mapping[str, Any]) -> None:
    """Raise on options of a data set, in a recipe or weights of somebody else, that take its place or all memory."""
    for option, value in options.items():
        if option in RESERVED:
            raise OptionError(f"{call}: '{option}' is not an option of a data set; leave it out")
        if isinstance(value, (int, float)) and not abs(value) <= (most := LARGEST_OPTIONS.get(option, 4096)):
            raise OptionError(f"{call}: data option {show(option)} must be at most {most}, got {shorten(value)}")


def check_views(call: str, data: Any) -> None:
    """Check the fields of a recipe's `data` that say how images are cropped."""
    check_count(call, "data.crop", data.crop, least=1)
    low, high = data.scales
    for scale in (low, high):
        check_positive(call, "data.scales", scale)
    if low > high:
        raise OptionError(f"{call}: data.scales go from small to large, got {low:g},{high:g}")


def _check_optim(call: str, optim: Optim | AdamOptim) -> None:
    """Raise on the first field of the optimizer whose value cannot work."""
    check_positive(call, "optim.lr", optim.lr)
    check_positive(call, "optim.power", optim.power, zero=isinstance(optim, AdamOptim))
    check_positive(call, "optim.weight_decay", optim.weight_decay, zero=True)
    if isinstance(optim, Optim):
        check_choice(call, "optim.kind", optim.kind, ("sgd", "adamw"))
        check_positive(call, "optim.bias_lr", optim.bias_lr, zero=True)
        check_positive(call, "optim.momentum", optim.momentum, zero=True, most=0.9999)
    else:
        check_positive(call, "optim.beta1", optim.beta1, zero=True, most=0.99999)
        check_positive(call, "optim.beta2", optim.beta2, zero=True, most=0.99999)
    check_count(call, "optim.warmup", optim.warmup, least=0)
    if optim.clip is not None:
        check_positive(call, "optim.clip", optim.clip)


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(recipe: Training) -> str:
    return encode_json(dataclasses.asdict(recipe), indent=2) + "\n"


def read_recipe(text: str, kind: type[Recipe], source: str = "recipe") -> Recipe:
    """The recipe of the given class that `to_json` wrote; `source` names its file in errors."""
    try:
        values = parse_json(text)
    except ValueError as mistake:
        raise OptionError(f"{source}: not valid JSON ({mistake}); expected a run's recipe.json") from None
    return build_recipe(values, kind, source)


def build_recipe(values: object, kind: type[Recipe], source: str = "recipe") -> Recipe:
    """The recipe of the given class with these values, as `read_recipe` reads them."""
    try:
        return _build(kind, values, "recipe")
    except OptionError as mistake:
        if source == "recipe":
            raise
        raise OptionError(f"{source}: {mistake}") from None


def digest(recipe: Training) -> str:
    """Sixteen hexadecimal digits, the same for equal recipes."""
    plain = json.dumps(_set_fields(recipe), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def _set_fields(group: Any) -> dict[str, Any]:
    """Fields and their values, without those added later and still at their default."""
    fields = [(one, getattr(group, one.name)) for one in dataclasses.fields(group)]
    values = {one.name: value for one, value in fields if ADDED_LATER not in one.metadata or value != one.default}
    return {name: _set_fields(value) if dataclasses.is_dataclass(value) else value for name, value in values.items()}


def flatten_fields(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested objects to one level of dotted names, as `--set` takes them."""
    if not isinstance(value, dict):
        return {path: value}
    fields: dict[str, Any] = {}
    for key, entry in value.items():
        fields |= flatten_fields(entry, f"{path}.{key}" if path else key)
    return fields


def differences(one: Training, other: Training) -> list[str]:
    """Such as `optim.lr: 0.009 here, 0.01 there`, for every field that differs."""
    here, there = (flatten_fields(json.loads(to_json(recipe))) for recipe in (one, other))
    pairs = {name: (here.get(name, "not set"), there.get(name, "not set")) for name in sorted({*here, *there})}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return [f"{show(name)}: {show(ours)} here, {show(theirs)} there" for name, (ours, theirs) in differing.items()]


def _build(kind: type[Group], values: object, place: str) -> Group:
    """A dataclass from plain values, each checked against the type of its field."""
    if not isinstance(values, Mapping):
        raise OptionError(f"{place}: takes named fields, got {shorten(values)}")
    hints = get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise OptionError(f"{place} has no field {shorten(name)}{did_you_mean(str(name), hints)}")
    fields = {name: _cast(hints[name], value, f"{place}.{name}") for name, value in values.items()}
    try:
        return kind(**fields)
    except OptionError:
        raise
    except TypeError as mistake:  # a field without a default is missing
        raise OptionError(f"{place}: {mistake}") from None


def _cast(kind: Any, value: Any, place: str) -> Any:
    """`value`, as plain JSON has it, as the type of its field."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, place)
    if required := _required(kind):
        return None if value is None else _cast(required, value, place)
    kinds = get_args(kind)
    if get_origin(kind) is tuple and isinstance(value, list | tuple) and len(value) == len(kinds):
        return tuple(_cast(inner, part, place) for inner, part in zip(kinds, value, strict=True))
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return {str(key): _copy_plain(inner, f"{place}.{show(key)}") for key, inner in value.items()}
    if kind in (str, int, float, bool) and (type(value) is kind or (kind is float and type(value) is int)):
        return kind(_copy_plain(value, place))
    raise OptionError(f"{place}: takes {_describe_type(kind)}, got {shorten(value)}")


def _copy_plain(value: Any, place: str, depth: int = 1) -> Any:
    """A copy of what JSON can hold, as JSON gives it back: with lists for tuples. Raise on anything else."""
    if depth > MAX_DEPTH:
        raise OptionError(f"{shorten(place)}: takes at most {MAX_DEPTH} levels of options inside options")
    if isinstance(value, Mapping):
        return {str(key): _copy_plain(inner, f"{place}.{show(key)}", depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copy_plain(inner, place, depth + 1) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OptionError(f"{place}: takes whole numbers of at most 64 bits, got {shorten(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionError(f"{place}: takes finite numbers, got {value}")
    if value is None or isinstance(value, str | int | float):
        return value
    raise OptionError(f"{place}: takes numbers, text, lists and named options, got {shorten(value)}")


def _required(kind: Any) -> Any:
    """`str` of `str | None`; None of a type that is not optional."""
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()
    return next((part for part in parts if part is not type(None)), None)


def _describe_type(kind: Any) -> str:
    """A type in words."""
    if required := _required(kind):
        return f"{_describe_type(required)} or none"
    if get_origin(kind) is tuple:
        return f"{len(get_args(kind))} comma-separated values"
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, "options by name")


# -- overrides ---------------------------------------------------------------------------------------------------------


def override(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return a copy of the recipe with new values of the fields in `changes`, by their dotted names."""
    values = json.loads(to_json(recipe))
    for path, value in changes.items():
        group, (*groups, name) = values, path.split(".")
        for key in groups:
            group = group.setdefault(key, {})
            if not isinstance(group, dict):
                raise OptionError(
                    f"recipe: '{key}' in '{path}' is not a group (got {shorten(group)}); set '{key}' itself"
                )
        group[name] = value
    return _build(type(recipe), values, "recipe") if changes else recipe


def apply(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """A new recipe with each `path=value` of `--set` in turn, such as `optim.lr=0.01`; read by the type of its field.

    Below a field of options, such as `model.context_options.rank=32`, any name goes and the value is read as it looks:
    a number, true or false, none, a comma-separated list, or text. JSON works too.
    """
    for setting in settings:
        path, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or not path:
            raise OptionError(f"--set takes path=value, such as optim.lr=0.01, got {shorten(setting)}")
        if not path.isprintable():
            raise OptionError(f"--set takes the dotted name of a field before '=', got {shorten(path)}")
        recipe = override(recipe, {path: _read_setting(type(recipe), path, text, setting)})
    return recipe


def _read_setting(recipe: type, path: str, text: str, setting: str) -> Any:
    """The value of a setting; raise on a path that names no field, and suggest the nearest one."""
    fields = dict(_fields(recipe))
    if path in fields:
        return _parse(fields[path], text)
    owner = next((name for name in fields if path.startswith(f"{name}.")), None)
    if owner is not None and get_origin(fields[owner]) is dict:
        return _guess(text)
    if owner is not None:
        field_type, rest = _describe_type(fields[owner]), path.removeprefix(f"{owner}.")
        raise OptionError(f"--set {owner}: '{owner}' is {field_type} and has no field {shorten(rest)}")
    if inside := [name for name in fields if name.startswith(f"{path}.")]:
        raise OptionError(f"--set {path}: '{path}' is a group; set one of its fields: {', '.join(inside)}")
    raise OptionError(f"--set {show(setting)}: no field {shorten(path)}{_suggest(list(fields), path)}")


def _suggest(paths: list[str], path: str) -> str:
    """` (did you mean optim.lr?)` for `lr`: the same name in another group first, then similar spellings."""
    last_names = {known.split(".")[-1]: known for known in reversed(paths)}
    name = path.split(".")[-1]
    nearest = [known for known in paths if known.split(".")[-1] == name]
    nearest = nearest or difflib.get_close_matches(path[:80], paths, n=1, cutoff=0.5)
    nearest = nearest or [last_names[one] for one in difflib.get_close_matches(name[:80], last_names, n=1, cutoff=0.5)]
    return f" (did you mean {' or '.join(nearest)}?)" if nearest else f"; fields: {', '.join(paths)}"


def _fields(group: Any) -> Iterator[tuple[str, Any]]:
    """Dotted names and types of all fields, those inside groups included."""
    for name, kind in get_type_hints(group).items():
        if dataclasses.is_dataclass(kind):
            yield from ((f"{name}.{path}", inner) for path, inner in _fields(kind))
        else:
            yield name, kind


def _parse(kind: Any, text: str) -> Any:
    """`text` as a plain value for a field of this type; what does not fit stays text, which `_cast` refuses."""
    if required := _required(kind):
        return None if text.lower() == "none" else _parse(required, text)
    if get_origin(kind) is tuple:
        return [_parse(get_args(kind)[0], part.strip()) for part in text.strip("()[]").split(",")]
    if get_origin(kind) is dict:
        return {} if text.lower() in ("", "none") else _guess(text)
    if kind is bool:
        flags = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
        return flags.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


def _guess(text: str) -> Any:
    """A value of no declared type, as it looks: 32, 0.5, true, none, a,b (a list), else text."""
    if text.startswith(("[", "{", '"')):
        try:
            return parse_json(text)
        except ValueError as mistake:
            raise OptionError(f"--set: {shorten(text)} begins like JSON, but is none ({mistake})") from None
    if "," in text:
        return [_guess(part.strip()) for part in text.split(",") if part.strip()]
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
