"""Parse what the user asks to insert at one place, and build the context for the features found there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hamburger.contexts import contexts, create_context
from hamburger.errors import HamburgerError, InputError, OptionError, ShapeError, check_choice, check_count
from hamburger.insertion.dry_run import ModuleCalls, is_feature
from hamburger.insertion.inserted import NESTED_TENSORS, FeatureAdapter
from hamburger.layers.burger import LAYOUTS, Hamburger

# layers whose channels are axis 1, for features with three, four and five axes
CHANNEL_FIRST_LAYERS = (
    (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d),
    (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
    (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d),
)
PLACEMENT_OPTIONS = ("layout", "grid", "output")
# Contexts that treat positions as a set, so tokens need no grid. A test compares the list with the registry.
POSITION_BLIND = frozenset(
    ("a2", "cd", "efficient", "ema", "enc", "external", "lightham", "nmf", "nonlocal", "ocr", "sa", "sgr", "vq")
)


@dataclass(frozen=True)
class ContextRequest:
    """What to insert at `place`: a context's name, a module or a function of the channels, with its options.

    `placement` holds the options that say how features are read: `layout`, `grid` and `output`.
    """

    place: str
    context: str | nn.Module | Callable[..., nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    placement: dict[str, Any] = field(default_factory=dict)


def parse_request(call: str, place: str, value: Any) -> ContextRequest:
    """Return the request for one entry of `places`: a context, or a tuple (context, {options})."""
    context, options = value, {}
    if isinstance(value, tuple):
        if len(value) != 2 or not isinstance(value[1], Mapping):
            raise OptionError(f"{call}: '{place}' must be given a context, or (context, {{options}}), got {value!r}")
        context, options = value[0], dict(value[1])
    if isinstance(context, str):
        try:
            contexts[context]
        except HamburgerError as error:  # its message suggests the nearest name
            raise type(error)(f"{call}, '{place}': {error}") from error
    elif not isinstance(context, nn.Module) and not callable(context):
        raise OptionError(
            f"{call}: '{place}' must be given the name of a context, a module, or a function of the channels that "
            f"builds one, got {context!r}"
        )
    placement = {key: options.pop(key) for key in PLACEMENT_OPTIONS if key in options}
    if isinstance(context, nn.Module) and options:
        raise OptionError(
            f"{call}: '{place}' is given a module, which takes no options except {', '.join(PLACEMENT_OPTIONS)} (got "
            f"{', '.join(options)}); pass options to its constructor"
        )
    if "layout" in placement:
        check_choice(f"{call}, '{place}'", "layout", placement["layout"], (*LAYOUTS, "sequence"))
    grid = placement.get("grid")
    if grid is not None:
        if not isinstance(grid, (tuple, list)) or len(grid) != 2:
            raise OptionError(f"{call}, '{place}': grid must be (height, width), got {grid!r}")
        for side in grid:
            check_count(f"{call}, '{place}'", "each side of the grid", side, least=1)
        placement["grid"] = tuple(grid)
    return ContextRequest(place, context, options, placement)


def collect_features(call: str, request: ContextRequest, module_calls: ModuleCalls) -> list[Tensor]:
    """Return the feature tensor of each call of the module; raise if there is none."""
    where = f"{call}: '{request.place}'"
    if module_calls.calls == 0:
        raise InputError(
            f"{where} is not called when the model runs on the example, so nothing can follow it; name a module that "
            "is called (the members of a ModuleList, not the list), or pass an example= that reaches it"
        )
    return [_check_feature(where, output, request.placement.get("output")) for output in module_calls.outputs]


def _check_feature(where: str, output: Any, part: Any) -> Tensor:
    if part is not None:
        if isinstance(output, Tensor):  # output[part] would be one sample of the batch
            raise OptionError(
                f"{where} returns one tensor, which has no parts (got output={part!r}); leave out 'output'"
            )
        try:
            output = output[part]
        except (LookupError, TypeError) as error:
            known = f"; it has {_list_parts(output)}" if isinstance(output, (tuple, list, dict)) else ""
            raise OptionError(
                f"{where} returns {_describe_output(output)}, which has no part {part!r}{known}"
            ) from error
    if not is_feature(output):
        remedy = "name a module that returns a tensor"
        parts = _list_parts(output) if part is None and isinstance(output, (tuple, list, dict)) else []
        parts = [each for each in parts if is_feature(output[each])]
        if parts:  # options may also come from a recipe or a command line
            remedy = f"choose a part in the context's options, {{'output': {parts[0]!r}}}, one of {parts}"
        raise InputError(
            f"{where} returns {_describe_output(output)}, not a tensor of floating point numbers; {remedy}"
        )
    if output.is_nested:
        raise InputError(f"{where} returns {NESTED_TENSORS}")
    if output.dim() not in (3, 4, 5) or 0 in output.shape:
        raise ShapeError(
            f"{where} returns {tuple(output.shape)}; a context takes feature maps (b, c, h, w[, d]) or tokens "
            "(b, n, c), so name a module before positions are pooled"
        )
    return output.clone() if output.is_inference() else output  # some models enter inference mode themselves


def _list_parts(output: tuple[Any, ...] | list[Any] | dict[Any, Any]) -> list[Any]:
    return (list(output) if isinstance(output, dict) else list(range(len(output))))[:8]


def build_requested_context(
    call: str, request: ContextRequest, model: nn.Module, module: nn.Module, features: Sequence[Tensor]
) -> tuple[nn.Module, FeatureAdapter]:
    """Return the requested context and its adapter, for the features of each call of `module`."""
    where, x = f"{call}, '{request.place}'", features[0]
    layout = request.placement.get("layout")
    if layout is None:
        if x.dim() == 3 and any(getattr(part, "batch_first", True) is False for part in model.modules()):
            raise InputError(
                f"{where} returns {tuple(x.shape)}, and the model has layers with batch_first=False: over the wrong "
                "axis a context would mix the samples of a batch; add {'layout': 'sequence'} to its options for "
                "(n, b, c), 'tokens' for (b, n, c), 'channels' for (b, c, n)"
            )
        layout = guess_layout(model, module, x)
    if layout == "sequence" and x.dim() != 3:
        raise ShapeError(f"{where}: the layout 'sequence' is (n, b, c), and the features are {tuple(x.shape)}")
    channel_axis = 1 if layout == "channels" else -1
    channels = x.shape[channel_axis]
    layout_is_given = "layout" in request.placement
    for other in features[1:]:
        same_channels = other.dim() == x.dim() and other.shape[channel_axis] == channels
        if not same_channels or not (layout_is_given or guess_layout(model, module, other) == layout):
            raise InputError(
                f"{where} is called {len(features)} times in one pass and returns {tuple(x.shape)} and "
                f"{tuple(other.shape)}; one context can only follow calls with the same channels on the same axis: "
                "name a module that is called once" + (", or pass the 'layout'" if same_channels else "")
            )
    positions = {"channels": x.shape[2:], "tokens": x.shape[1:-1], "sequence": x.shape[:1]}[layout]
    grid = request.placement.get("grid")
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
    if isinstance(context, str):
        try:
            context = create_context(context, channels, **request.options)
        except HamburgerError as error:
            raise type(error)(f"{where}: {error}") from error
    elif not isinstance(context, nn.Module):
        try:
            context = context(channels, **request.options)
        except HamburgerError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:  # the user's function may raise anything
            arguments = ", ".join((str(channels), *(f"{name}={value!r}" for name, value in request.options.items())))
            raise OptionError(
                f"{where}: {getattr(context, '__name__', type(context).__name__)}({arguments}) must build a context "
                f"for {channels} channels and failed ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(context, nn.Module):
            raise OptionError(f"{where}: the function must build a torch.nn.Module, got {type(context).__name__}")
    takes = choose_input_layout(context)
    if grid is not None:
        takes = "map"
    elif takes == "map" and len(positions) != 2 and not _is_position_blind(request.context, context):
        raise ShapeError(
            f"{where}: {type(context).__name__} looks at neighbours in a map b c h w, and the features are "
            f"{tuple(x.shape)}; arrange them as a map with {{'grid': (height, width)}} in its options, or use one of "
            f"{', '.join(sorted(POSITION_BLIND))}"
        )
    skipped = None if grid is None else positions.numel() - grid[0] * grid[1]
    return context, FeatureAdapter(layout, takes, grid, request.placement.get("output"), skipped, request.place)


def guess_layout(model: nn.Module, module: nn.Module, x: Tensor) -> str:
    """Return the layout of features x: which axis holds the channels.

    For maps, three signs vote, since each of them can mislead:

    - Sizes of weights. Layers that concatenate, shuffle or transpose have other sizes: the 16 x 16 map of an Inception
      block is as wide as one of its branches.
    - The sides of a square map. An image that is not square can be as high as it has channels.
    - The kind of layers. Some modules permute the output of a convolution.
    """
    if x.dim() == 3:
        votes_3d = (vote(part, x) for part in (module, model) for vote in (_vote_by_width, _vote_by_kind))
        return next((vote for vote in votes_3d if vote), "tokens")
    votes = [_vote_by_width(module, x), _vote_by_kind(module, x), _vote_by_sides(x)]
    lead = votes.count("channels") - votes.count("tokens")
    if lead:
        return "channels" if lead > 0 else "tokens"
    return _vote_by_width(model, x) or "channels"


def _vote_by_width(part: nn.Module, x: Tensor) -> str | None:
    widths = {parameter.shape[0] for parameter in part.parameters() if parameter.dim()}
    first, last = x.shape[1] in widths, x.shape[-1] in widths
    return None if first == last else "channels" if first else "tokens"


def _vote_by_kind(part: nn.Module, x: Tensor) -> str | None:
    channels_first = any(isinstance(layer, CHANNEL_FIRST_LAYERS[x.dim() - 3]) for layer in part.modules())
    channels_last = any(isinstance(layer, (nn.Linear, nn.LayerNorm)) for layer in part.modules())
    return None if channels_first == channels_last else "channels" if channels_first else "tokens"


def _vote_by_sides(x: Tensor) -> str | None:
    first, last = len(set(x.shape[2:])) == 1, len(set(x.shape[1:-1])) == 1
    return None if first == last else "channels" if first else "tokens"


def choose_input_layout(context: nn.Module) -> str:
    """Return what a context takes, as in `FeatureAdapter.takes`; foreign modules get the features unchanged."""
    if isinstance(context, Hamburger):
        return context.layout
    registered = tuple(kind for kind in contexts.values() if isinstance(kind, type))
    return "map" if isinstance(context, registered) else "same"


def describe_missing_module(call: str, place: str, names: list[str]) -> str:
    """Return the error message for a name that no submodule has, with the nearest known names."""
    deeper = [name for name in names if name.endswith(f".{place}")]  # the same name inside another module
    close = deeper[:3] or difflib.get_close_matches(place, names, n=3, cutoff=0.5)
    if not close:
        ends = {name.rpartition(".")[2]: name for name in reversed(names)}
        close = [ends[end] for end in difflib.get_close_matches(place, ends, n=1)]
    hint = " or ".join(f"'{name}'" for name in close)
    children = [name for name in names if "." not in name]
    shown = ", ".join(children[:12]) + (", ..." if len(children) > 12 else "")
    return f"{call}: the model has no submodule '{place}'" + (
        f"; did you mean {hint}?" if close else f"; it has {shown}"
    )


def _is_position_blind(requested: Any, context: nn.Module) -> bool:
    if isinstance(requested, str):
        name: str | None = requested
    else:
        name = next((known for known, kind in contexts.items() if kind is type(context)), None)
    return name in POSITION_BLIND and not isinstance(getattr(context, "pool", None), nn.MaxPool2d)


def _describe_output(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}"
    if isinstance(value, dict):
        return f"a {type(value).__name__} with {list(value)[:8]}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
