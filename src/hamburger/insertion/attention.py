"""`replace_attention`: a ham or efficient attention where a vision transformer had its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hamburger.errors import HamburgerError, InputError, OptionError, ShapeError, UnknownNameError, did_you_mean
from hamburger.insertion.quiet import check_ready, quiet, watch
from hamburger.layers.burger import Hamburger
from hamburger.layers.context import create_context
from hamburger.layers.context.efficient import EfficientAttention

CALL = "replace_attention"
NAMES = ("nmf", "vq", "cd", "efficient")
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
        for value in (*args, *kwargs.values()):
            if value is not None and value is not False:
                raise InputError(
                    f"{CALL}: the block calls its attention with more than tokens (a mask, rotated positions), which "
                    "a decomposition does not take; replace the attention of other blocks, or call the model without it"
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
    context: str | nn.Module | Iterable[nn.Module],
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
    made: dict[str, ReplacedAttention] = {}
    for (place, module), given in zip(places.items(), ready, strict=True):
        x, calls = seen[place].output, seen[place].calls
        if calls != 1 or not isinstance(x, Tensor) or x.dim() != 3:
            came = f"{calls} calls" if calls != 1 else getattr(x, "shape", type(x).__name__)
            raise InputError(f"{CALL}: '{place}' must be called once and give tokens (b, n, c); got {came}")
        built = _build(place, context, x.shape[-1], options) if given is None else given
        replaced = ReplacedAttention(built, module).to(x.device, x.dtype)
        _try(place, replaced, x)
        made[place] = replaced.train(module.training)
    for place, replaced in made.items():
        _put(model, place, replaced)
    try:
        watch(CALL, model, {}, example)  # a mask shows only when the model runs
    except Exception:
        for place, replaced in made.items():
            restore(model, place, replaced)
        raise
    return model


def restore(model: nn.Module, place: str, replaced: ReplacedAttention) -> None:
    """Put the attention back, onto the device and into the mode of what stood for it meanwhile."""
    original = replaced.original[0]
    like = next((p for p in replaced.parameters() if p.is_floating_point()), None)
    if like is not None:
        original.to(like.device, like.dtype)
    _put(model, place, original.train(replaced.training))


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
