"""`replace_attention`: a ham or efficient attention in place of a vision transformer's attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args

from torch import Tensor, nn

from hamburger.contexts import create_context
from hamburger.contexts.efficient import EfficientAttention
from hamburger.errors import HamburgerError, InputError, OptionError, UnknownNameError, did_you_mean
from hamburger.insertion.dry_run import (
    ModuleCalls,
    check_alone,
    check_ready,
    choose_dtype,
    name_place,
    record_calls,
    run_once,
)
from hamburger.layers.burger import Hamburger

CALL = "replace_attention"
EXTRA_INPUTS = "more than tokens (a mask, sizes, rotary positions), which a decomposition does not take"
Replacement = Literal["nmf", "vq", "cd", "efficient"]
NAMES = get_args(Replacement)
Model = TypeVar("Model", bound=nn.Module)


class ReplacedAttention(nn.Module):
    """A context over tokens without its skip, since the block around it has one.   b n c   ->   b n c

    Class and register tokens are positions like all others: they are decomposed or attended to together.
    """

    def __init__(self, context: nn.Module, original: nn.Module) -> None:
        super().__init__()
        self.context = context
        self.original = [original]  # in a list, so that it is not registered: not in parameters() or the state dict

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if _has_extra_inputs(args) or _has_extra_inputs(kwargs.values()):
            raise InputError(
                f"{CALL}: the block calls its attention with {EXTRA_INPUTS}; replace the attention of other blocks, or "
                "call the model without it"
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
    """Replace the attention in blocks of a vision transformer (timm's, or any with a child `attn`), in place.

    >>> replace_attention(vit, "nmf", blocks=[-1, -2], rank=16)
    >>> remove_contexts(vit)                                            # undo it

    - `context`: "nmf", "vq", "cd" or "efficient" with their options, or a module (b, n, c) -> (b, n, c) without a skip,
      one for each block. A `Hamburger` or efficient attention that you built is used without its skip.
    - `blocks`: their numbers from 0, or negative ones from the end; by default all blocks.
    - `example`: as in `insert_context`.

    `remove_contexts` restores the attention with its weights.
    """
    check_ready(CALL, model)
    names = [name for name, module in model.named_modules() if "attn" in dict(module.named_children())]
    if not names:
        raise InputError(f"{CALL}: {type(model).__name__} has no block with a child 'attn', as timm's ViTs have")
    chosen = _choose_blocks(names, blocks)
    places = {f"{name}.attn": model.get_submodule(f"{name}.attn") for name in chosen}
    for place, module in places.items():
        if isinstance(module, ReplacedAttention):
            raise InputError(f"{CALL}: '{place}' is already replaced; call remove_contexts(model, ['{place}']) first")
    modules = _check_modules(context, len(places), options)
    calls, example = record_calls(CALL, model, places, example)
    objections = {place: reason for place in places if (reason := _find_objection(calls[place]))}
    if objections:
        place, reason = next(iter(objections.items()))
        fit = [names.index(name) for name in chosen if f"{name}.attn" not in objections]
        remedy = (
            f"; of these blocks only blocks={fit} can be replaced" if fit else "; none of these blocks can be replaced"
        )
        raise InputError(f"{CALL}: '{place}' {reason}{remedy}")
    replacements: dict[str, ReplacedAttention] = {}
    for (place, attention), replacement in zip(places.items(), modules, strict=True):
        x = calls[place].outputs[0]
        x = x.to(choose_dtype(model, attention, x))
        with name_place(CALL, place):
            module = create_context(str(context), x.shape[-1], **options) if replacement is None else replacement
        replaced = ReplacedAttention(module, attention).to(x.device, x.dtype)
        check_alone(CALL, place, replaced, module, x)
        replacements[place] = replaced.train(attention.training)
    for place, replaced in replacements.items():
        _set_module(model, place, replaced)
    try:
        run_once(model, example)
    except Exception as error:
        for place, replaced in replacements.items():
            restore_attention(model, place, replaced)
        if isinstance(error, HamburgerError):
            raise
        raise InputError(
            f"{CALL}: the model runs with its own attention but not with the replacement ({type(error).__name__}: "
            f"{error}); choose blocks that use nothing but the tokens it returns"
        ) from error
    return model


def _has_extra_inputs(values: Iterable[Any]) -> bool:
    return any(value is not None and value is not False for value in values)


def _find_objection(calls: ModuleCalls) -> str | None:
    """Return why an attention that was called so cannot be replaced; None if it can."""
    if len(calls.outputs) != 1:
        return f"is called {len(calls.outputs)} times in one pass, but must be called once"
    x, (tokens, *others) = calls.outputs[0], calls.inputs or (None,)
    expected, returned = (tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in (tokens, x))
    if not isinstance(x, Tensor) or x.dim() != 3:
        return f"must return tokens (b, n, c), got {returned}"
    if expected != returned:  # class attention returns its class token alone, which a block would add to all tokens
        return f"returns {returned} for {expected}, but a decomposition returns as many tokens as it takes"
    return f"is called with {EXTRA_INPUTS}" if _has_extra_inputs(others) else None


def restore_attention(model: nn.Module, place: str, replaced: ReplacedAttention) -> None:
    """Put the attention back, on the device and in the mode of its replacement."""
    original = replaced.original[0]
    like = next((p for p in replaced.parameters() if p.is_floating_point()), None)
    if like is not None:
        original.to(like.device, like.dtype)
    original.train(replaced.training)  # its return value is not used: that of LeViT is None
    _set_module(model, place, original)


def _set_module(model: nn.Module, place: str, module: nn.Module) -> None:
    parent, _, name = place.rpartition(".")
    model.get_submodule(parent)._modules[name] = module


def _choose_blocks(names: list[str], blocks: Iterable[int] | None) -> list[str]:
    if blocks is None:
        return names
    numbers = [blocks] if isinstance(blocks, int) else list(blocks)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not -len(names) <= number < len(names):
            raise OptionError(f"{CALL}: blocks are numbers from {-len(names)} to {len(names) - 1}, got {number!r}")
    chosen = [names[number] for number in numbers]
    if not chosen or len(set(chosen)) < len(chosen):
        raise OptionError(f"{CALL}: blocks must name at least one block and none twice, got {numbers}")
    return chosen


def _check_modules(context: Any, count: int, options: dict[str, Any]) -> list[nn.Module | None]:
    """Return the modules that were passed, one for each block, or None for each if the context is given by name."""
    if isinstance(context, str):
        if context not in NAMES:
            raise UnknownNameError(f"{CALL}: no replacement '{context}'{did_you_mean(context, NAMES)}")
        return [None] * count
    if options:
        raise OptionError(
            f"{CALL}: options belong to a context given by name (got {', '.join(options)} with modules); pass them to "
            "the constructor of the modules"
        )
    modules = [context] if isinstance(context, nn.Module) else list(context) if isinstance(context, Iterable) else []
    if not modules or not all(isinstance(module, nn.Module) for module in modules):
        raise OptionError(f"{CALL}: context must be one of {', '.join(NAMES)}, or modules, got {context!r}")
    if len(modules) != count or len({id(module) for module in modules}) != count:
        raise OptionError(f"{CALL}: {count} blocks need as many different modules, got {len(modules)}")
    return list(modules)
