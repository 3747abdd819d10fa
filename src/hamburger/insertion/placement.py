"""What a person asked for at one place, and the form of the features that were found there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hamburger.contexts import contexts, create_context
from hamburger.errors import HamburgerError, InputError, OptionError, ShapeError, check_choice, check_count
from hamburger.insertion.dry_run import Seen, is_feature
from hamburger.insertion.inserted import NESTED, Form
from hamburger.layers.burger import LAYOUTS, Hamburger

# layers whose channels are axis 1, for features of three, four and five axes
ALONG = (
    (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d),
    (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
    (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d),
)
PLACING = ("layout", "grid", "output")
# Contexts that treat positions as a set: tokens need no grid for them. A test holds the list to the registry.
POSITION_BLIND = frozenset(
    ("a2", "cd", "efficient", "ema", "enc", "external", "lightham", "nmf", "nonlocal", "ocr", "sa", "sgr", "vq")
)


@dataclass(frozen=True)
class Wish:
    """A context as it was asked for: a name, a module or a function of the channels, with options, and where."""

    place: str
    what: str | nn.Module | Callable[..., nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    placing: dict[str, Any] = field(default_factory=dict)


def wish(call: str, place: str, asked: Any) -> Wish:
    what, options = asked, {}
    if isinstance(asked, tuple):
        if len(asked) != 2 or not isinstance(asked[1], Mapping):
            raise OptionError(f"{call}: '{place}' must be given a context, or (context, {{options}}), got {asked!r}")
        what, options = asked[0], dict(asked[1])
    if isinstance(what, str):
        try:
            contexts[what]
        except HamburgerError as error:  # which has the nearest name
            raise type(error)(f"{call}, '{place}': {error}") from error
    elif not isinstance(what, nn.Module) and not callable(what):
        raise OptionError(
            f"{call}: '{place}' must be given the name of a context, a module, or a function of the channels that "
            f"builds one, got {what!r}"
        )
    placing = {key: options.pop(key) for key in PLACING if key in options}
    if isinstance(what, nn.Module) and options:
        raise OptionError(
            f"{call}: '{place}' is given a ready module, which takes no options but {', '.join(PLACING)}; "
            f"got {', '.join(options)}"
        )
    if "layout" in placing:
        check_choice(f"{call}, '{place}'", "layout", placing["layout"], (*LAYOUTS, "sequence"))
    grid = placing.get("grid")
    if grid is not None:
        if not isinstance(grid, (tuple, list)) or len(grid) != 2:
            raise OptionError(f"{call}, '{place}': grid must be (height, width), got {grid!r}")
        for side in grid:
            check_count(f"{call}, '{place}'", "each side of the grid", side, least=1)
        placing["grid"] = tuple(grid)
    return Wish(place, what, options, placing)


def features(call: str, wish: Wish, seen: Seen) -> list[Tensor]:
    """The one tensor that the place gave at each call, or what is wrong with it."""
    where = f"{call}: '{wish.place}'"
    if seen.calls == 0:
        raise InputError(
            f"{where} is not called when the model runs on the example, so nothing can follow it; name a module that "
            "is (where a model goes through a list, its members), or give an example= that reaches it"
        )
    return [_feature(where, output, wish.placing.get("output")) for output in seen.outputs]


def _feature(where: str, output: Any, part: Any) -> Tensor:
    if part is not None:
        if isinstance(output, Tensor):  # a part of it would be one sample of the batch
            raise OptionError(f"{where} gives one tensor, which has no parts; leave out 'output', got {part!r}")
        try:
            output = output[part]
        except (LookupError, TypeError) as error:
            among = f"; it has {_parts(output)}" if isinstance(output, (tuple, list, dict)) else ""
            raise OptionError(f"{where} gives {_kind(output)}, which has no part {part!r}{among}") from error
    if not is_feature(output):
        remedy = "name a module that gives a tensor"
        parts = _parts(output) if part is None and isinstance(output, (tuple, list, dict)) else []
        parts = [each for each in parts if is_feature(output[each])]
        if parts:  # options may also come from a recipe or a command line
            remedy = f"say which part of it in the context's options, {{'output': {parts[0]!r}}}, one of {parts}"
        raise InputError(f"{where} gives {_kind(output)}, not a tensor of floating point numbers; {remedy}")
    if output.is_nested:
        raise InputError(f"{where} gives {NESTED}")
    if output.dim() not in (3, 4, 5) or 0 in output.shape:
        raise ShapeError(
            f"{where} gives {tuple(output.shape)}; a context takes feature maps (b, c, h, w[, d]) or tokens (b, n, c), "
            "so name a module before positions are pooled away"
        )
    return output.clone() if output.is_inference() else output  # of a model that enters inference mode by itself


def _parts(output: tuple[Any, ...] | list[Any] | dict[Any, Any]) -> list[Any]:
    return (list(output) if isinstance(output, dict) else list(range(len(output))))[:8]


def realise(
    call: str, wish: Wish, model: nn.Module, module: nn.Module, calls: Sequence[Tensor]
) -> tuple[nn.Module, Form]:
    """Build what was asked for, for the features of each call, and decide the form it takes."""
    where, x = f"{call}, '{wish.place}'", calls[0]
    layout = wish.placing.get("layout")
    if layout is None:
        if x.dim() == 3 and any(getattr(part, "batch_first", True) is False for part in model.modules()):
            raise InputError(
                f"{where} gives {tuple(x.shape)}, and the model has layers with batch_first=False: over the wrong axis "
                "a context would mix the samples of a batch; say {'layout': 'sequence'} in its options for (n, b, c), "
                "'tokens' for (b, n, c), 'channels' for (b, c, n)"
            )
        layout = layout_of(model, module, x)
    if layout == "sequence" and x.dim() != 3:
        raise ShapeError(f"{where}: the layout 'sequence' is (n, b, c), and the features are {tuple(x.shape)}")
    along = 1 if layout == "channels" else -1
    channels = x.shape[along]
    told = "layout" in wish.placing
    for other in calls[1:]:
        alike = other.dim() == x.dim() and other.shape[along] == channels
        if not alike or not (told or layout_of(model, module, other) == layout):
            raise InputError(
                f"{where} is called {len(calls)} times in one pass and gives {tuple(x.shape)} and "
                f"{tuple(other.shape)}; one context follows them all only where channels are as many and lie on the "
                "same axis: name a module that is called once" + (", or say the 'layout'" if alike else "")
            )
    positions = {"channels": x.shape[2:], "tokens": x.shape[1:-1], "sequence": x.shape[:1]}[layout]
    grid = wish.placing.get("grid")
    if grid is not None and grid[0] * grid[1] > positions.numel():
        raise ShapeError(
            f"{where}: a grid of {grid} has more than the {positions.numel()} positions of {tuple(x.shape)}"
        )
    if grid is not None and len(positions) == 2 and grid != tuple(positions):  # rows of a map are no class tokens
        raise ShapeError(
            f"{where}: a grid says how tokens lie, and the features {tuple(x.shape)} are a map of "
            f"{positions[0]} x {positions[1]} already; leave out 'grid', got {grid}"
        )
    context = wish.what
    if isinstance(context, str):
        try:
            context = create_context(context, channels, **wish.options)
        except HamburgerError as error:
            raise type(error)(f"{where}: {error}") from error
    elif not isinstance(context, nn.Module):
        try:
            context = context(channels, **wish.options)
        except HamburgerError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:  # a function of others can fail in any way
            given = ", ".join((str(channels), *(f"{name}={value!r}" for name, value in wish.options.items())))
            raise OptionError(
                f"{where}: {getattr(context, '__name__', type(context).__name__)}({given}) must build a context for "
                f"{channels} channels and failed ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(context, nn.Module):
            raise OptionError(f"{where}: the function must build a torch.nn.Module, got {type(context).__name__}")
    takes = taken_by(context)
    if grid is not None:
        takes = "map"
    elif takes == "map" and len(positions) != 2 and not _position_blind(wish.what, context):
        raise ShapeError(
            f"{where}: {type(context).__name__} looks at neighbours in a map b c h w, and the features are "
            f"{tuple(x.shape)}; say how its positions lie in its options, {{'grid': (height, width)}}, or take one of "
            f"{', '.join(sorted(POSITION_BLIND))}"
        )
    aside = None if grid is None else positions.numel() - grid[0] * grid[1]
    return context, Form(layout, takes, grid, wish.placing.get("output"), aside, wish.place)


def layout_of(model: nn.Module, module: nn.Module, x: Tensor) -> str:
    """Which axis the channels are. Three signs can each deceive, so that of maps they are counted.

    - Lengths of weights. Layers that join, shuffle or transpose give others: the 16 x 16 map of an Inception block is
      as wide as one of its branches.
    - The sides of a square map. An image that is not square can be as high as it has channels.
    - The kind of layers. Some permute what a convolution gave.
    """
    if x.dim() == 3:
        signs = (sign(part, x) for part in (module, model) for sign in (_by_width, _by_kind))
        return next((sign for sign in signs if sign), "tokens")
    votes = [_by_width(module, x), _by_kind(module, x), _by_sides(x)]
    lead = votes.count("channels") - votes.count("tokens")
    if lead:
        return "channels" if lead > 0 else "tokens"
    return _by_width(model, x) or "channels"


def _by_width(part: nn.Module, x: Tensor) -> str | None:
    widths = {parameter.shape[0] for parameter in part.parameters() if parameter.dim()}
    first, last = x.shape[1] in widths, x.shape[-1] in widths
    return None if first == last else "channels" if first else "tokens"


def _by_kind(part: nn.Module, x: Tensor) -> str | None:
    along = any(isinstance(layer, ALONG[x.dim() - 3]) for layer in part.modules())
    across = any(isinstance(layer, (nn.Linear, nn.LayerNorm)) for layer in part.modules())
    return None if along == across else "channels" if along else "tokens"


def _by_sides(x: Tensor) -> str | None:
    first, last = len(set(x.shape[2:])) == 1, len(set(x.shape[1:-1])) == 1
    return None if first == last else "channels" if first else "tokens"


def taken_by(context: nn.Module) -> str:
    if isinstance(context, Hamburger):
        return context.layout
    ours = tuple(kind for kind in contexts.values() if isinstance(kind, type))
    return "map" if isinstance(context, ours) else "same"


def missing(call: str, place: str, names: list[str]) -> str:
    """The message about a name that no submodule has, with the nearest that one has."""
    deeper = [name for name in names if name.endswith(f".{place}")]  # the name it has inside another module
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


def _position_blind(asked: Any, context: nn.Module) -> bool:
    name = asked if isinstance(asked, str) else next((n for n, kind in contexts.items() if kind is type(context)), None)
    return name in POSITION_BLIND and not isinstance(getattr(context, "pool", None), nn.MaxPool2d)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}"
    if isinstance(value, dict):
        return f"a {type(value).__name__} with {list(value)[:8]}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
