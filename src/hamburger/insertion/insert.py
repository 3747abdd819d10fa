"""`insert_context` and `remove_contexts`. A call that raises leaves the model as it was."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hamburger.contexts import contexts, create_context
from hamburger.errors import (
    HamburgerError,
    InputError,
    OptionError,
    ShapeError,
    UnknownNameError,
    check_choice,
    check_count,
)
from hamburger.insertion.dry_run import (
    ModuleCalls,
    check_alone,
    check_model,
    check_ready,
    choose_dtype,
    find_layout,
    is_feature,
    name_place,
    record_calls,
    reset_compiled_code,
)
from hamburger.insertion.inserted import (
    CHILD_NAME,
    GATES,
    NESTED_TENSORS,
    FeatureAdapter,
    Gate,
    InsertedContext,
    attach_context,
    detach_context,
    holds_context,
)
from hamburger.insertion.replace_attention import ReplacedAttention, restore_attention
from hamburger.layers.burger import LAYOUTS, Hamburger

CALL = "insert_context"
PLACEMENT_OPTIONS = ("layout", "grid", "output")
# Contexts that treat positions as a set, so tokens need no grid. A test compares the list with the registry.
POSITION_BLIND = frozenset(
    (
        *("a2", "cd", "efficient", "ema", "enc", "external", "hals", "learned", "lightham", "nmf", "nonlocal", "ocr"),
        *("robust", "sa", "sgr", "vq"),
    )
)
Model = TypeVar("Model", bound=nn.Module)


def insert_context(
    model: Model, places: Mapping[str, Any], *, gate: Gate | None = "zero", example: Any = None
) -> Model:
    """Insert contexts after named submodules of any network, in place; return the model.

    >>> insert_context(resnet, {"layer3": "efficient", "layer4.1": ("nmf", {"rank": 32})})
    >>> insert_context(vit, {"blocks.5": ("psp", {"grid": (14, 14)})}, gate="one")

    - `places`: maps names of `model.named_modules()` to contexts. A context is a name, a module, a function that builds
      one from the number of channels, or a tuple of one of these and its options. Three of the options say how to read
      the features: `layout` ("channels", "tokens" or "sequence") names their axes, if the guess is wrong; `grid`,
      (h, w), arranges the last h w tokens as a map and leaves the tokens before them unchanged; `output` selects an
      entry if the module returns a tuple or a dict.
    - `gate`: "zero": x + g (context(x) - x) with a learned scalar g that starts at 0, so the network's outputs do not
      change until it is trained; "one": the same with g starting at 1; None: the context alone.
    - `example`: an input of the model: a tensor, a tuple of arguments or a dict of keyword arguments. `insert_context`
      runs the model on it, in evaluation mode, to find the number of channels, and once more with the contexts; its
      state is restored. By default an image is made up.

    Hams by name have the defaults of `Hamburger`: no final ReLU, as features need not be positive at the named place.
    """
    check_ready(CALL, model)
    if not (gate is None or (isinstance(gate, str) and gate in GATES)):
        raise OptionError(f"{CALL}: gate must be 'zero', 'one' or None, got {gate!r}")
    if not isinstance(places, Mapping) or not places:
        raise OptionError(f"{CALL}: places must be a dict from names of submodules to contexts, got {places!r}")
    requests = [_parse_request(place, value) for place, value in places.items()]
    modules = _find_modules(model, requests)
    calls, example = record_calls(CALL, model, modules, example)

    inserted = {
        request.place: _build_inserted(request, gate, model, modules[request.place], calls[request.place].outputs)
        for request in requests
    }
    for place, context in inserted.items():
        attach_context(modules[place], context)
    try:
        _try_model(model, modules, inserted, example, {place: len(calls[place].outputs) for place in inserted})
    except Exception:
        for place in inserted:
            detach_context(modules[place])
        raise
    reset_compiled_code()
    return model


def remove_contexts(model: Model, places: Iterable[str] | None = None) -> Model:
    """Undo `insert_context` and `replace_attention`, everywhere or at the named places; return the model.

    >>> remove_contexts(resnet, ["layer3"])        # at one place
    >>> remove_contexts(resnet)                    # everywhere

    The original modules come back as the same objects with the same state dict keys, and keep their trained weights.
    """
    call = "remove_contexts"
    check_model(call, model)
    changed = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if holds_context(module) or isinstance(module, ReplacedAttention)
    }
    if isinstance(places, str):
        places = [places]
    if places is not None and not isinstance(places, Iterable):
        raise OptionError(f"{call}: places must be names of submodules, got {places!r}")
    chosen = list(changed) if places is None else list(dict.fromkeys(places))
    for place in chosen:
        if place not in changed:
            raise UnknownNameError(f"{call}: there is no context at '{place}'; there are contexts at {list(changed)}")
    for place in reversed(chosen):  # inner modules first: a replaced attention may be inside a module with a context
        module = changed[place]
        if isinstance(module, ReplacedAttention):
            restore_attention(model, place, module)
        elif holds_context(module):  # a module with two names may be done already
            detach_context(module)
    if chosen:
        reset_compiled_code()
    return model


# -- what to insert, and where -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContextRequest:
    """What to insert at `place`: a context's name, a module or a function of the channels, with its options.

    `layout`, `grid` and `output` say how features are read, as in `insert_context`.
    """

    place: str
    context: str | nn.Module | Callable[..., nn.Module]
    options: dict[str, Any]
    layout: str | None
    grid: tuple[int, int] | None
    output: int | str | None


def _parse_request(place: str, value: Any) -> ContextRequest:
    """Return the request for one entry of `places`: a context, or a tuple (context, {options})."""
    where = f"{CALL}, '{place}'"
    context, options = value if isinstance(value, tuple) and len(value) == 2 else (value, {})
    if not (isinstance(context, str) or callable(context)) or not isinstance(options, Mapping):
        raise OptionError(
            f"{CALL}: '{place}' must be given a context (its name, a module, or a function of the channels that builds "
            f"one) or a tuple of a context and its options, got {value!r}"
        )
    if isinstance(context, str):
        with name_place(CALL, place):
            contexts[context]  # an error suggests the nearest name
    options = dict(options)
    layout, grid, output = (options.pop(key, None) for key in PLACEMENT_OPTIONS)
    if isinstance(context, nn.Module) and options:
        raise OptionError(
            f"{CALL}: '{place}' is given a module, which takes no options except {', '.join(PLACEMENT_OPTIONS)} (got "
            f"{', '.join(options)}); pass options to its constructor"
        )
    if layout is not None:
        check_choice(where, "layout", layout, (*LAYOUTS, "sequence"))
    if grid is not None:
        if not isinstance(grid, (tuple, list)) or len(grid) != 2:
            raise OptionError(f"{where}: grid must be (height, width), got {grid!r}")
        for side in grid:
            check_count(where, "each side of the grid", side, least=1)
        grid = (grid[0], grid[1])
    return ContextRequest(place, context, options, layout, grid, output)


def _find_modules(model: nn.Module, requests: list[ContextRequest]) -> dict[str, nn.Module]:
    """Return the modules by name; raise on everything that can be refused before the model runs."""
    known = dict(model.named_modules(remove_duplicate=False))
    names = [name for name in known if name and CHILD_NAME not in name.split(".")]
    modules: dict[str, nn.Module] = {}
    for request in requests:
        place, context = request.place, request.context
        if not isinstance(place, str):
            raise OptionError(f"{CALL}: places are names as in model.named_modules(), got {place!r}")
        if place == "":
            raise OptionError(f"{CALL}: '' is the whole model; build nn.Sequential(model, context) instead")
        if place not in known:
            raise UnknownNameError(describe_missing_module(CALL, place, names))
        module = known[place]
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"{CALL}: '{place}' is a TorchScript module, which cannot be changed; insert the context before "
                "torch.jit.trace, and trace under torch.no_grad()"
            )
        if holds_context(module):
            raise InputError(
                f"{CALL}: '{place}' already has a context; remove it first, remove_contexts(model, ['{place}'])"
            )
        twin = next((name for name, other in modules.items() if other is module), None)
        if twin is not None:
            raise InputError(f"{CALL}: '{twin}' and '{place}' are the same module; name one of them")
        used = (*known.values(), *(other.context for other in requests if other is not request))
        if isinstance(context, nn.Module) and any(context is other for other in used):
            raise InputError(
                f"{CALL}: the module given for '{place}' is also used elsewhere; pass one module per place, for "
                "example copy.deepcopy(context)"
            )
        modules[place] = module
    return modules


def describe_missing_module(call: str, place: str, names: list[str]) -> str:
    """Return the error message for a name that no submodule has, with the nearest known names."""
    # also without the names of the modules around it
    spellings = {name.rpartition(".")[2]: name for name in reversed(names)} | {name: name for name in names}
    close = difflib.get_close_matches(place, spellings, n=1, cutoff=0.5)
    children = [name for name in names if "." not in name]
    hint = f"did you mean '{spellings[close[0]]}'?" if close else f"it has {', '.join(children[:12])}"
    return f"{call}: the model has no submodule '{place}'; {hint}"


def _check_feature(request: ContextRequest, output: Any) -> Tensor:
    """Return the feature tensor in what a module returned; raise if there is none."""
    where, part = f"{CALL}: '{request.place}'", request.output
    keys = list(output) if isinstance(output, dict) else range(len(output)) if isinstance(output, (tuple, list)) else ()
    if part is not None:
        if isinstance(output, Tensor):  # output[part] would be one sample of the batch
            raise OptionError(f"{where} returns one tensor, without parts (got output={part!r}); leave out 'output'")
        try:
            output = output[part]
        except (LookupError, TypeError) as error:
            raise OptionError(f"{where} returns no part {part!r}; it has {list(keys)[:8]}") from error
    if not is_feature(output):
        kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
        parts = [] if part is not None else [key for key in keys if is_feature(output[key])][:8]
        remedy = (
            f"choose a part with the option 'output', one of {parts}" if parts else "name a module that returns one"
        )
        raise InputError(f"{where} returns {kind}, not a tensor of floating point numbers; {remedy}")
    if output.is_nested:
        raise InputError(f"{where} returns {NESTED_TENSORS}")
    if output.dim() not in (3, 4, 5) or 0 in output.shape:
        raise ShapeError(
            f"{where} returns {tuple(output.shape)}; a context takes feature maps (b, c, h, w[, d]) or tokens "
            "(b, n, c), so name a module before positions are pooled"
        )
    return output.clone() if output.is_inference() else output  # some models enter inference mode themselves


# -- the context for the features of a place ---------------------------------------------------------------------------


def _build_inserted(
    request: ContextRequest, gate: Gate | None, model: nn.Module, module: nn.Module, outputs: Sequence[Any]
) -> InsertedContext:
    """Return the requested context with its gate, tried on the outputs of each call of `module`."""
    features = [_check_feature(request, output) for output in outputs]
    if not features:
        raise InputError(
            f"{CALL}: '{request.place}' is not called when the model runs on the example, so nothing can follow it; "
            "name a module that is called (the members of a ModuleList, not the list), or pass an example= that "
            "reaches it"
        )
    context, adapter = _build_context(request, model, module, features)
    x = features[0].to(choose_dtype(model, module, features[0]))
    inserted = InsertedContext(context, gate=gate, adapter=adapter).to(x.device, x.dtype)
    for other in {feature.shape: feature.to(x.dtype) for feature in features}.values():
        version = other._version
        check_alone(CALL, request.place, partial(adapter.run, context), context, other)
        if other._version != version:
            raise InputError(
                f"{CALL}: {type(context).__name__} changes its input in place, but the gate still needs it; build it "
                "without inplace=True"
            )
    if inserted.gate is not None and inserted.is_identity(x):
        # no gate is needed to keep the network's outputs; behind a closed one neither would get a gradient
        nn.init.ones_(inserted.gate)
    return inserted.train(module.training)


def _build_context(
    request: ContextRequest, model: nn.Module, module: nn.Module, features: Sequence[Tensor]
) -> tuple[nn.Module, FeatureAdapter]:
    """Return the requested context and its adapter, for the features of each call of `module`."""
    where, grid, x = f"{CALL}, '{request.place}'", request.grid, features[0]
    layout = find_layout(where, request.layout, model, module, features)
    channels = x.shape[1 if layout == "channels" else -1]
    positions = {"channels": x.shape[2:], "tokens": x.shape[1:-1], "sequence": x.shape[:1]}[layout]
    if grid is not None and grid[0] * grid[1] > positions.numel():
        raise ShapeError(
            f"{where}: a grid of {grid} has more than the {positions.numel()} positions of {tuple(x.shape)}"
        )
    if grid is not None and len(positions) == 2 and grid != tuple(positions):  # the rows of a map are not class tokens
        raise ShapeError(
            f"{where}: 'grid' arranges tokens, but the features {tuple(x.shape)} are already a map of "
            f"{positions[0]} x {positions[1]} (got grid={grid}); leave out 'grid'"
        )
    context = request.context
    if not isinstance(context, nn.Module):
        context = _call_builder(request.place, context, channels, request.options)
    takes = "map" if grid is not None else _choose_input_layout(context)
    no_map = takes == "map" and len(positions) != 2 and not _is_position_blind(request.context, context)
    # tokens may be a map with a class token before it: a ham that uses neighbours must know
    no_map |= isinstance(context, Hamburger) and context.lacks_grid and layout != "channels" and len(positions) == 1
    if grid is None and no_map:
        raise ShapeError(
            f"{where}: {type(context).__name__} looks at neighbours in a map b c h w, and the features are "
            f"{tuple(x.shape)}; arrange them as a map with {{'grid': (height, width)}} in its options, or use one of "
            f"{', '.join(sorted(POSITION_BLIND))}"
        )
    skipped = 0 if grid is None else positions.numel() - grid[0] * grid[1]
    return context, FeatureAdapter(layout, takes, grid, request.output, skipped, request.place)


def _call_builder(place: str, build: str | Callable[..., Any], channels: int, options: dict[str, Any]) -> nn.Module:
    """Build a context from its name or by the user's function."""
    with name_place(CALL, place):
        if isinstance(build, str):
            return create_context(build, channels, **options)
        try:
            context = build(channels, **options)
        except HamburgerError:
            raise
        except Exception as error:  # the user's function may raise anything
            arguments = ", ".join((str(channels), *(f"{name}={value!r}" for name, value in options.items())))
            raise OptionError(
                f"{getattr(build, '__name__', type(build).__name__)}({arguments}) must build a context for {channels} "
                f"channels and failed ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(context, nn.Module):
            raise OptionError(f"the function must build a torch.nn.Module, got {type(context).__name__}")
        return context


def _choose_input_layout(context: nn.Module) -> str:
    """Return what a context takes, as in `FeatureAdapter.takes`; foreign modules get the features unchanged."""
    if isinstance(context, Hamburger):
        return context.layout
    registered = tuple(kind for kind in contexts.values() if isinstance(kind, type))
    return "map" if isinstance(context, registered) else "same"


def _is_position_blind(requested: Any, context: nn.Module) -> bool:
    name = requested
    if not isinstance(requested, str):
        name = next((known for known, kind in contexts.items() if kind is type(context)), None)
    return name in POSITION_BLIND and not isinstance(getattr(context, "pool", None), nn.MaxPool2d)


def _try_model(
    model: nn.Module,
    modules: dict[str, nn.Module],
    inserted: dict[str, InsertedContext],
    example: Any,
    counts: dict[str, int],
) -> None:
    """Run the model with its contexts; raise unless each runs once per call of its module, on finite features.

    `counts`: the calls of each module. A module that loops over its children runs the context as one of them, so its
    hook is removed. Such a module must return the very tensor of the context, or other features would change.
    """
    calls, _ = record_calls(CALL, model, inserted, example)
    looping = [
        place
        for place, context in inserted.items()
        if len(calls[place].outputs) == 2 * counts[place] and context.adapter.output is None
    ]
    for place in looping:
        inserted[place].unhook()
    returned: dict[str, ModuleCalls] = {}
    if looping:
        both = {**inserted, **{f"{place} itself": modules[place] for place in looping}}
        calls, _ = record_calls(CALL, model, both, example)
        returned = {place: calls.pop(f"{place} itself") for place in looping}
    for place, record in calls.items():
        if inserted[place].gate is not None and not record.finite:  # x + 0 (context(x) - x) is NaN: inf - inf
            raise InputError(
                f"{CALL}: '{place}' returns features that are not finite (a mask of -inf, or weights not loaded "
                "yet), which a gate cannot keep unchanged; name a module before it, or use gate=None"
            )
        outputs = returned.get(place, record).outputs
        if len(record.outputs) != counts[place] or list(map(id, outputs)) != list(map(id, record.outputs)):
            raise InputError(
                f"{CALL}: '{place}' loops over its children itself, so its output would change with a context; name "
                "the module around it or one inside"
            )
