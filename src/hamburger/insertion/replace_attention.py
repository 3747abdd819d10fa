"""`replace_attention`: a ham or efficient attention in place of a vision transformer's attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args

import torch
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
    preserve_state,
    record_calls,
    run_once,
)
from hamburger.layers.burger import Hamburger

CALL = "replace_attention"
# where blocks have their attention: timm, transformers, torchvision, nn.TransformerEncoder
PATHS = ("attn", "attention", "self_attention", "self_attn")
OWN_SKIP = (
    "adds its input to what it returns, which a replacement would not; pass attention=, the path of a part without"
)
EXTRA_INPUTS = "more than tokens (a mask, sizes, rotary positions), which a decomposition does not take"
Replacement = Literal["nmf", "vq", "cd", "hals", "robust", "learned", "efficient"]
NAMES = get_args(Replacement)
Model = TypeVar("Model", bound=nn.Module)


class ReplacedAttention(nn.Module):
    """A context over tokens without its skip, since the block around it has one.   b n c   ->   b n c

    Class and register tokens are positions like all others: they are decomposed or attended to together. Where the
    original returned a tuple of `outputs` values, such as tokens and attention weights, the others are None.
    """

    def __init__(self, context: nn.Module, original: nn.Module, outputs: int | None = None) -> None:
        super().__init__()
        self.context, self.outputs = context, outputs
        self.original = [original]  # in a list, so that it is not registered: not in parameters() or the state dict
        self.sequence_first = _is_sequence_first(original)  # n b c
        # nn.TransformerEncoderLayer reads this; a value that is not true keeps it off its fused path, which needs the
        # weights of an attention
        self.batch_first = False if self.sequence_first else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x, *others = (*args, *kwargs.values())
        if _has_extra_inputs(x, others):
            raise InputError(
                f"{CALL}: the block calls its attention with {EXTRA_INPUTS}; replace the attention of other blocks, or "
                "call the model without it"
            )
        y = self.mix(x.transpose(0, 1)).transpose(0, 1) if self.sequence_first else self.mix(x)
        return y if self.outputs is None else (y, *[None] * (self.outputs - 1))

    def mix(self, x: Tensor) -> Tensor:
        """Return the context's output without its skip.   b n c   ->   b n c"""
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
    attention: str | None = None,
    example: Any = None,
    **options: Any,
) -> Model:
    """Replace the attention in blocks of a transformer (timm, transformers, torchvision, `nn.TransformerEncoder`).

    >>> replace_attention(vit, "nmf", blocks=[-1, -2], rank=16)         # in place
    >>> remove_contexts(vit)                                            # undo it

    - `context`: "nmf", "vq", "cd", "hals", "robust", "learned" or "efficient" with their options, or a module
      (b, n, c) -> (b, n, c) without a skip, one for each block. A `Hamburger` or efficient attention that you built is
      used without its skip.
    - `blocks`: their numbers from 0, or negative ones from the end; by default all blocks.
    - `attention`: the path of the attention inside a block, such as "mixer.attn"; by default the first of "attn",
      "attention", "self_attention" and "self_attn" that the model has.
    - `example`: as in `insert_context`.

    `remove_contexts` restores the attention with its weights.
    """
    check_ready(CALL, model)
    found = _find_attention(model, attention)
    places = {place: model.get_submodule(place) for place in _choose_blocks(found, blocks)}
    for place, module in places.items():
        if isinstance(module, ReplacedAttention):
            raise InputError(f"{CALL}: '{place}' is already replaced; call remove_contexts(model, ['{place}']) first")
    modules = _check_modules(context, len(places), options)
    calls, example = record_calls(CALL, model, places, example)
    objections = {place: reason for place in places if (reason := _find_objection(places[place], calls[place]))}
    if objections:
        place, reason = next(iter(objections.items()))
        fit = [found.index(place) for place in places if place not in objections]
        remedy = (
            f"; of these blocks only blocks={fit} can be replaced"
            if fit
            else "; none of these blocks can be replaced, but insert_context adds a context behind them"
        )
        raise InputError(f"{CALL}: '{place}' {reason}{remedy}")
    replacements: dict[str, ReplacedAttention] = {}
    for (place, original), replacement in zip(places.items(), modules, strict=True):
        output = calls[place].outputs[0]
        x = _read_tokens(output)
        x = x.to(choose_dtype(model, original, x))
        with name_place(CALL, place):
            module = create_context(str(context), x.shape[-1], **options) if replacement is None else replacement
        count = len(output) if isinstance(output, tuple) else None
        replaced = ReplacedAttention(module, original, count).to(x.device, x.dtype)
        check_alone(CALL, place, replaced.mix, module, x.transpose(0, 1) if replaced.sequence_first else x)
        replacements[place] = replaced.train(original.training)
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


def _find_attention(model: nn.Module, path: str | None) -> list[str]:
    """Return the names of the attention modules, one per block."""
    names = [name for name, _ in model.named_modules()]
    for each in PATHS if path is None else (path,):
        found = [name for name in names if name == each or name.endswith(f".{each}")]
        if found:
            # transformers 4 nests attention.attention
            return [name for name in found if not any(name.startswith(f"{outer}.") for outer in found)]
    looked = f"at the path '{path}'" if path is not None else f"named {', '.join(PATHS)}"
    raise InputError(
        f"{CALL}: {type(model).__name__} has no block with an attention {looked}; pass attention=, its path inside a "
        "block, or add a context behind any module with insert_context"
    )


def _is_sequence_first(attention: nn.Module) -> bool:
    return getattr(attention, "batch_first", True) is False


def _has_extra_inputs(tokens: Any, others: Iterable[Any]) -> bool:
    """Return whether an attention gets more than its tokens, which may also be its keys and values."""
    return any(value is not None and value is not False and value is not tokens for value in others)


def _read_tokens(output: Any) -> Any:
    """Return the tokens that an attention returns, alone or in front of its weights."""
    return output[0] if isinstance(output, tuple) and output else output


def _find_objection(attention: nn.Module, calls: ModuleCalls) -> str | None:
    """Return why an attention that was called so cannot be replaced; None if it can."""
    if len(calls.outputs) != 1:
        return f"is called {len(calls.outputs)} times in one pass, but must be called once"
    x, (tokens, *others) = _read_tokens(calls.outputs[0]), (*calls.arguments, *calls.keywords.values(), None)
    expected, returned = (tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in (tokens, x))
    if not isinstance(x, Tensor) or x.dim() != 3:
        return f"must return tokens (b, n, c), got {returned}"
    if expected != returned:  # class attention returns its class token alone, which a block would add to all tokens
        return f"returns {returned} for {expected}, but a decomposition returns as many tokens as it takes"
    if _has_extra_inputs(tokens, others):
        return f"is called with {EXTRA_INPUTS}"
    return OWN_SKIP if _has_skip(attention, calls, tokens) else None


def _has_skip(attention: nn.Module, calls: ModuleCalls, tokens: Tensor) -> bool:
    """Return whether the output depends on the input even if all matrices of the attention are zero."""
    zeros = {
        f"{name}.{key}".lstrip("."): torch.zeros_like(value)
        for name, part in attention.named_modules()
        if any(parameter.dim() > 1 for parameter in part.parameters(recurse=False))  # not norms and scales
        for key, value in part.named_parameters(recurse=False)
    }
    if not zeros:
        return False
    outputs = []
    for x in (tokens, tokens.flip(-1) + 1 + tokens.square()):
        args = [x if value is tokens else value for value in calls.arguments]
        kwargs = {key: x if value is tokens else value for key, value in calls.keywords.items()}
        with preserve_state(attention):
            outputs.append(_read_tokens(torch.func.functional_call(attention, zeros, tuple(args), kwargs)))
    return not torch.equal(*outputs)


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
    if any(isinstance(module, Hamburger) and module.lacks_grid for module in modules):
        raise OptionError(
            f"{CALL}: a ham that uses neighbours needs the grid of the tokens; call insert_context with 'grid', "
            f"or take one of {', '.join(NAMES)}"
        )
    if len(modules) != count or len({id(module) for module in modules}) != count:
        raise OptionError(f"{CALL}: {count} blocks need as many different modules, got {len(modules)}")
    return list(modules)
