"""`insert_context` and `remove_contexts`. A call that raises leaves the model as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, OptionError, ShapeError, UnknownNameError
from hamburger.insertion.container_proxy import CHILD_NAME
from hamburger.insertion.dry_run import (
    ModuleCalls,
    check_not_in_ddp,
    check_ready,
    choose_dtype,
    preserve_state,
    record_calls,
    reset_compiled_code,
)
from hamburger.insertion.inserted import GATES, InsertedContext, attach_context, detach_context, holds_context
from hamburger.insertion.placement import (
    ContextRequest,
    build_requested_context,
    collect_features,
    describe_missing_module,
    parse_request,
)
from hamburger.insertion.replace_attention import ReplacedAttention, restore_attention
from hamburger.literals import Gate

CALL = "insert_context"
Model = TypeVar("Model", bound=nn.Module)


def insert_context(
    model: Model, places: Mapping[str, Any], *, gate: Gate | None = "zero", example: Any = None
) -> Model:
    """Insert contexts after named submodules of any network, in place; return the model.

    >>> insert_context(resnet, {"layer3": "efficient", "layer4.1": ("nmf", {"rank": 32})})

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
    requests = [parse_request(CALL, place, value) for place, value in places.items()]
    modules = _find_modules(model, requests)
    calls, example = record_calls(CALL, model, modules, example)

    contexts: dict[str, InsertedContext] = {}
    for request in requests:
        module, features = modules[request.place], collect_features(CALL, request, calls[request.place])
        context, adapter = build_requested_context(CALL, request, model, module, features)
        x = features[0].to(choose_dtype(model, module, features[0]))
        inserted = InsertedContext(context, gate=gate, adapter=adapter).to(x.device, x.dtype)
        for other in {feature.shape: feature for feature in features}.values():
            _try_context(request.place, inserted, other.to(x.dtype))
        if inserted.gate is not None and _is_identity(inserted, x):
            # no gate is needed to keep the network's outputs; behind a closed one neither would get a gradient
            nn.init.ones_(inserted.gate)
        contexts[request.place] = inserted.train(module.training)

    for place, inserted in contexts.items():
        attach_context(modules[place], inserted)
    try:
        with _refuse_nonfinite_features(contexts):
            counts = {place: calls[place].calls for place in contexts}
            _check_contexts_run_once(model, modules, contexts, example, counts)
    except Exception:
        for place in contexts:
            detach_context(modules[place])
        raise
    reset_compiled_code()
    return model


def remove_contexts(model: Model, places: Iterable[str] | None = None) -> Model:
    """Undo `insert_context` and `replace_attention`, everywhere or at the named places; return the model.

    The original modules come back as the same objects with the same state dict keys, and keep their trained weights.
    """
    call = "remove_contexts"
    check_not_in_ddp(call, model, "would wait for the gradients of removed parameters")
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


def _find_modules(model: nn.Module, requests: list[ContextRequest]) -> dict[str, nn.Module]:
    """Return the modules by name; raise on everything that can be refused before the model runs."""
    known = dict(model.named_modules(remove_duplicate=False))
    names = [name for name in known if name and CHILD_NAME not in name.split(".")]
    found: dict[str, nn.Module] = {}
    users: dict[int, str] = {}  # where each module that was passed is used
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
        twin = next((name for name, other in found.items() if other is module), None)
        if twin is not None:
            raise InputError(f"{CALL}: '{twin}' and '{place}' are the same module; name one of them")
        if isinstance(context, nn.Module):
            if id(context) in users or any(context is module for module in known.values()):
                other = users.get(id(context), "elsewhere in the model")
                raise InputError(
                    f"{CALL}: the module given for '{place}' is also used at {other}; pass one module per place, for "
                    "example copy.deepcopy(context)"
                )
            users[id(context)] = f"'{place}'"
        found[place] = module
    return found


def _check_contexts_run_once(
    model: nn.Module,
    modules: dict[str, nn.Module],
    contexts: dict[str, InsertedContext],
    example: Any,
    counts: dict[str, int],
) -> None:
    """Raise unless each context runs once per call of its module (`counts`: calls of each module).

    A module that loops over its children runs the context as one of them, so its hook is removed.
    """
    calls, _ = record_calls(CALL, model, contexts, example)
    looping = [
        place
        for place, context in contexts.items()
        if calls[place].calls == 2 * counts[place] and context.adapter.output is None
    ]
    for place in looping:
        contexts[place].unhook()
    module_calls: dict[str, ModuleCalls] = {}
    if looping:
        both = {**contexts, **{f"{place} itself": modules[place] for place in looping}}
        calls, _ = record_calls(CALL, model, both, example)
        module_calls = {place: calls.pop(f"{place} itself") for place in looping}
    for place, record in calls.items():
        # in a loop the context must be the last child: the module then returns the very tensor of the context
        outputs = module_calls.get(place, record).outputs
        if record.calls != counts[place] or list(map(id, outputs)) != list(map(id, record.outputs)):
            raise InputError(
                f"{CALL}: '{place}' loops over its children itself, so its output would change with a context; name "
                "the module around it or one inside"
            )


@contextmanager
def _refuse_nonfinite_features(contexts: dict[str, InsertedContext]) -> Iterator[None]:
    """Context manager: raise if a gated context gets NaN or infinity. A gate of 0 does not keep them: inf - inf is NaN.

    Checked when the contexts are called, since a network may change its features in place afterwards.
    """
    nonfinite: list[str] = []

    def make_hook(place: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            if not args[0].is_meta and not args[0].isfinite().all():
                nonfinite.append(place)

        return hook

    handles = [
        inserted.register_forward_pre_hook(make_hook(place))
        for place, inserted in contexts.items()
        if inserted.gate is not None
    ]
    try:
        yield
    except Exception:
        if not nonfinite:  # otherwise NaN caused the error, and the message below is clearer
            raise
    finally:
        for handle in handles:
            handle.remove()
    if nonfinite:
        raise InputError(
            f"{CALL}: '{nonfinite[0]}' returns features that are not finite (a mask of -inf, or weights not loaded "
            "yet), which a gate cannot keep unchanged; name a module before it, or use gate=None"
        )


def _is_identity(inserted: InsertedContext, x: Tensor) -> bool:
    """Whether a context starts as the identity, as those do whose last layer is initialised to zero.

    Tested on large numbers of both signs, since x may be all zero or may hide a ReLU. Tested in training mode too,
    where a dropout is not the identity.
    """
    if x.is_meta:  # there are no values to compare
        return False
    probe = 10 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    for training in (False, True):
        with preserve_state(inserted, training=training):
            try:
                y = inserted.adapter.run(inserted.context, probe)
            except Exception:  # for example batch norm, which cannot train on a single value
                return False
        if not torch.equal(y, probe):
            return False
    return True


def _try_context(place: str, inserted: InsertedContext, x: Tensor) -> None:
    """Run a context alone on the features of its place, so that an error can name the place."""
    kind = type(inserted.context).__name__
    version = x._version
    try:
        with preserve_state(inserted):
            y = inserted.adapter.run(inserted.context, x)
    except Exception as error:
        raise ShapeError(
            f"{CALL}: {kind} cannot take the features {tuple(x.shape)} of '{place}', read as "
            f"'{inserted.adapter.layout}': {error}"
        ) from error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        result = tuple(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ShapeError(
            f"{CALL}: a context must keep the shape of its input, but {kind} returns {result} for {tuple(x.shape)}"
        )
    if x._version != version:
        raise InputError(
            f"{CALL}: {kind} changes its input in place, but the gate still needs it; build it without inplace=True"
        )
