"""`replace_attention`: a ham or efficient attention where a vision transformer had its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from hamburger.contexts import create_context
from hamburger.contexts.efficient import EfficientAttention
from hamburger.errors import HamburgerError, InputError, OptionError, ShapeError, UnknownNameError, did_you_mean
from hamburger.insertion.dry_run import Seen, call_with, check_ready, dtype_of, quiet, watch
from hamburger.layers.burger import Hamburger
from hamburger.literals import Replacement

CALL = "replace_attention"
MORE = "more than tokens (a mask, sizes, rotated positions), which a decomposition does not take"
NAMES = get_args(Replacement)
Model = TypeVar("Model", bound=nn.Module)


class ReplacedAttention(nn.Module):
    """A context over tokens without its skip, which the block around it has.   b n c   ->   b n c

    Class and register tokens are positions like all others: they are decomposed or attended to with them, and receive
    context from them.
    """

    def __init__(self, context: nn.Module, original: nn.Module) -> None:
        super().__init__()
        self.context = context
        self.original = [original]  # in a list: out of the parameters and the state dict, but here for the way back

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if _asks_more(args) or _asks_more(kwargs.values()):
            raise InputError(
                f"{CALL}: the block calls its attention with {MORE}; replace the attention of other blocks, or call "
                "the model without it"
            )
        if isinstance(self.context, Hamburger):
            y = self.context.context(x.mT).mT
        elif isinstance(self.context, EfficientAttention):
            y = self.context.context(x.mT.unsqueeze(3)).squeeze(3).mT
        else:
            y = self.context(x)
        return y.to(x.dtype)


def replace_attention(
    model: Model,
    context: Replacement | nn.Module | Iterable[nn.Module],
    *,
    blocks: Iterable[int] | None = None,
    example: Any = None,
    **options: Any,
) -> Model:
    """Exchange the attention of a vision transformer's blocks (those of timm, or with a child `attn`), in place.

    >>> replace_attention(vit, "nmf", blocks=[-1, -2], rank=16)

    - `context`: "nmf", "vq", "cd" or "efficient" with their options, or a module (b, n, c) -> (b, n, c) without a skip,
      one for each block. A ready `Hamburger` or efficient attention works as its name does, without its skip.
    - `blocks`: which, counted from 0 and from the end by negative numbers; by default all of them.
    - `example`: as in `insert_context`.

    `remove_contexts` puts the attention back, with the weights it had.
    """
    check_ready(CALL, model)
    found = [name for name, module in model.named_modules() if "attn" in dict(module.named_children())]
    if not found:
        raise InputError(f"{CALL}: {type(model).__name__} has no block with a child 'attn', as the ViTs of timm have")
    chosen = _choose(found, blocks)
    places = {f"{name}.attn": model.get_submodule(f"{name}.attn") for name in chosen}
    for place, module in places.items():
        if isinstance(module, ReplacedAttention):
            raise InputError(f"{CALL}: '{place}' is replaced already; remove_contexts(model, ['{place}']) first")
    ready = _ready(context, len(places), options)
    seen, example = watch(CALL, model, places, example)
    unfit = {place: reason for place in places if (reason := _unfit(seen[place]))}
    if unfit:
        place, reason = next(iter(unfit.items()))
        fit = [found.index(name) for name in chosen if f"{name}.attn" not in unfit]
        remedy = (
            f"; of these blocks only blocks={fit} can be replaced" if fit else "; none of these blocks can be replaced"
        )
        raise InputError(f"{CALL}: '{place}' {reason}{remedy}")
    made: dict[str, ReplacedAttention] = {}
    for (place, module), own in zip(places.items(), ready, strict=True):
        x = seen[place].output
        built = _build(place, context, x.shape[-1], options) if own is None else own
        x = x.to(dtype_of(model, module, x))
        replaced = ReplacedAttention(built, module).to(x.device, x.dtype)
        _try(place, replaced, x)
        made[place] = replaced.train(module.training)
    for place, replaced in made.items():
        _put(model, place, replaced)
    try:
        with quiet(model):
            call_with(model, example)
    except Exception as error:
        for place, replaced in made.items():
            restore(model, place, replaced)
        if isinstance(error, HamburgerError):
            raise
        raise InputError(
            f"{CALL}: the model ran with its attention, and not with another in place of it ({type(error).__name__}: "
            f"{error}); choose blocks that ask nothing but tokens of it"
        ) from error
    return model


def _asks_more(values: Iterable[Any]) -> bool:
    return any(value is not None and value is not False for value in values)


def _unfit(seen: Seen) -> str | None:
    """Why nothing can stand for an attention that was called so."""
    if seen.calls != 1:
        return f"is called {seen.calls} times in one pass, and must be once"
    x, (tokens, *others) = seen.output, seen.given or (None,)
    came = [tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__ for each in (tokens, x)]
    if not isinstance(x, Tensor) or x.dim() != 3:
        return f"must give tokens (b, n, c); got {came[1]}"
    if came[0] != came[1]:  # class attention gives its class token alone, and a block would spread it over all
        return f"makes {came[1]} of {came[0]}, and a decomposition gives as many tokens as it takes"
    return f"is called with {MORE}" if _asks_more(others) else None


def restore(model: nn.Module, place: str, replaced: ReplacedAttention) -> None:
    """Put the attention back, onto the device and into the mode of what stood for it meanwhile."""
    original = replaced.original[0]
    like = next((p for p in replaced.parameters() if p.is_floating_point()), None)
    if like is not None:
        original.to(like.device, like.dtype)
    original.train(replaced.training)  # what it gives back is not to be trusted: LeViT's gives None
    _put(model, place, original)


def _put(model: nn.Module, place: str, module: nn.Module) -> None:
    parent, _, name = place.rpartition(".")
    model.get_submodule(parent)._modules[name] = module


def _choose(found: list[str], blocks: Iterable[int] | None) -> list[str]:
    if blocks is None:
        return found
    numbers = [blocks] if isinstance(blocks, int) else list(blocks)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not -len(found) <= number < len(found):
            raise OptionError(f"{CALL}: blocks are numbers from {-len(found)} to {len(found) - 1}, got {number!r}")
    chosen = [found[number] for number in numbers]
    if not chosen or len(set(chosen)) < len(chosen):
        raise OptionError(f"{CALL}: blocks must name at least one block and none twice, got {numbers}")
    return chosen


def _ready(context: Any, count: int, options: dict[str, Any]) -> list[nn.Module | None]:
    """The modules that were given, one for each block; None where they are built by name."""
    if isinstance(context, str):
        if context not in NAMES:
            raise UnknownNameError(f"{CALL}: no replacement '{context}'{did_you_mean(context, NAMES)}")
        return [None] * count
    if options:
        raise OptionError(f"{CALL}: options belong to a context by name, got {', '.join(options)} for ready modules")
    modules = [context] if isinstance(context, nn.Module) else list(context) if isinstance(context, Iterable) else []
    if not modules or not all(isinstance(module, nn.Module) for module in modules):
        raise OptionError(f"{CALL}: context must be one of {', '.join(NAMES)}, or modules, got {context!r}")
    if len(modules) != count or len({id(module) for module in modules}) != count:
        raise OptionError(f"{CALL}: {count} blocks need as many modules, each its own; got {len(modules)}")
    return list(modules)


def _build(place: str, name: Any, channels: int, options: dict[str, Any]) -> nn.Module:
    try:
        return create_context(name, channels, **options)
    except HamburgerError as error:
        raise type(error)(f"{CALL}, '{place}': {error}") from error


def _try(place: str, replaced: ReplacedAttention, x: Tensor) -> None:
    kind = type(replaced.context).__name__
    try:
        with quiet(replaced):
            y = replaced(x)
    except Exception as error:
        raise ShapeError(f"{CALL}: {kind} cannot take the tokens {tuple(x.shape)} of '{place}': {error}") from error
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        raise ShapeError(f"{CALL}: {kind} must keep the shape {tuple(x.shape)} of the tokens of '{place}'")
