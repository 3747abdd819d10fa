"""`insert_context` and `remove_contexts`: all of a call is done, or nothing of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, OptionError, ShapeError, UnknownNameError
from hamburger.insertion.container_proxy import NAME
from hamburger.insertion.dry_run import Seen, check_bare, check_ready, compile_again, dtype_of, quiet, watch
from hamburger.insertion.inserted import GATES, InsertedContext, attach, detach, holds_context
from hamburger.insertion.placement import Wish, features, missing, realise, wish
from hamburger.insertion.replace_attention import ReplacedAttention, restore
from hamburger.literals import Gate

CALL = "insert_context"
Model = TypeVar("Model", bound=nn.Module)


def insert_context(
    model: Model, places: Mapping[str, Any], *, gate: Gate | None = "zero", example: Any = None
) -> Model:
    """Put contexts after named submodules of any network, in place; the model is returned.

    >>> insert_context(resnet, {"layer3": "efficient", "layer4.1": ("nmf", {"rank": 32})})

    - `places`: to each name of `model.named_modules()` the name of a context, a ready module, a function that builds
      one from the channels, or a pair of one of these and its options. Three options say where rather than what:
      `layout` ("channels", "tokens" or "sequence": which axis is which, where it was not seen rightly), `grid` ((h, w):
      the last h w tokens as a map, with those before them passing by) and `output` (which part of a tuple or a dict).
    - `gate`: "zero", a learned scalar g in x + g (context(x) - x) that starts at 0: the network answers as before until
      it is trained; "one", the same from 1; None, the context alone.
    - `example`: an input to find channels by: a tensor, a tuple of arguments or a dict of keyword arguments. By default
      one is made for networks on images. The model is run with it twice, in evaluation, and is not changed by that.

    Hams by name have the defaults of `Hamburger`: no final ReLU, as features need not be positive at the named place.
    """
    check_ready(CALL, model)
    if not (gate is None or (isinstance(gate, str) and gate in GATES)):
        raise OptionError(f"{CALL}: gate must be 'zero', 'one' or None, got {gate!r}")
    if not isinstance(places, Mapping) or not places:
        raise OptionError(f"{CALL}: places must be a dict from names of submodules to contexts, got {places!r}")
    wishes = [wish(CALL, place, asked) for place, asked in places.items()]
    modules = _find(model, wishes)
    seen, example = watch(CALL, model, modules, example)

    made: dict[str, InsertedContext] = {}
    for each in wishes:
        module, calls = modules[each.place], features(CALL, each, seen[each.place])
        context, form = realise(CALL, each, model, module, calls)
        x = calls[0].to(dtype_of(model, module, calls[0]))
        inserted = InsertedContext(context, gate=gate, form=form).to(x.device, x.dtype)
        for other in {call.shape: call for call in calls}.values():
            _try(each.place, inserted, other.to(x.dtype))
        if inserted.gate is not None and _gives_back(inserted, x):
            # it needs no gate to leave the network as it was, and behind a closed one neither would see a gradient
            nn.init.ones_(inserted.gate)
        made[each.place] = inserted.train(module.training)

    for place, inserted in made.items():
        attach(modules[place], inserted)
    try:
        with _finite_features(made):
            _run_again(model, modules, made, example, {place: seen[place].calls for place in made})
    except Exception:
        for place in made:
            detach(modules[place])
        raise
    compile_again()
    return model


def remove_contexts(model: Model, places: Iterable[str] | None = None) -> Model:
    """Undo `insert_context` and `replace_attention`, everywhere or at the named places; the model is returned.

    The modules are the same objects as before, with the state dict keys of before. What was trained in them stays.
    """
    call = "remove_contexts"
    check_bare(call, model, "would wait for the gradients of what is gone")
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
            raise UnknownNameError(f"{call}: there is no context at '{place}'; there are some at {list(changed)}")
    for place in reversed(chosen):  # inner ones first: a replaced attention may lie in a module that holds a context
        module = changed[place]
        if isinstance(module, ReplacedAttention):
            restore(model, place, module)
        elif holds_context(module):  # a module of two names was here before
            detach(module)
    if chosen:
        compile_again()
    return model


def _find(model: nn.Module, wishes: list[Wish]) -> dict[str, nn.Module]:
    """The modules by name; everything that is wrong before the model is run."""
    known = dict(model.named_modules(remove_duplicate=False))
    names = [name for name in known if name and NAME not in name.split(".")]
    found: dict[str, nn.Module] = {}
    given: dict[int, str] = {}
    for each in wishes:
        place = each.place
        if not isinstance(place, str):
            raise OptionError(f"{CALL}: places are names as in model.named_modules(), got {place!r}")
        if place == "":
            raise OptionError(f"{CALL}: '' is the whole model; put nn.Sequential(model, context) around it instead")
        if place not in known:
            raise UnknownNameError(missing(CALL, place, names))
        module = known[place]
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"{CALL}: '{place}' is a module of TorchScript, which is closed; put the context in before "
                "torch.jit.trace, which is called under torch.no_grad()"
            )
        if holds_context(module):
            raise InputError(
                f"{CALL}: '{place}' has a context already; take it out first, remove_contexts(model, ['{place}'])"
            )
        twin = next((name for name, other in found.items() if other is module), None)
        if twin is not None:
            raise InputError(f"{CALL}: '{twin}' and '{place}' are the same module; name one of them")
        if isinstance(each.what, nn.Module):
            if id(each.what) in given or any(each.what is module for module in known.values()):
                other = given.get(id(each.what), "elsewhere in the model")
                raise InputError(
                    f"{CALL}: the module given for '{place}' is also used at {other}; give each place its own, for "
                    "example copy.deepcopy(context)"
                )
            given[id(each.what)] = f"'{place}'"
        found[place] = module
    return found


def _run_again(
    model: nn.Module,
    modules: dict[str, nn.Module],
    made: dict[str, InsertedContext],
    example: Any,
    calls: dict[str, int],
) -> None:
    """See that each context runs once at each call. A module that goes through its children runs it by itself: no hook
    is needed.
    """
    seen, _ = watch(CALL, model, made, example)
    looped = [place for place in made if seen[place].calls == 2 * calls[place] and made[place].form.output is None]
    for place in looped:
        made[place].unhook()
    around: dict[str, Seen] = {}
    if looped:
        both = {**made, **{f"{place} itself": modules[place] for place in looped}}
        seen, _ = watch(CALL, model, both, example)
        around = {place: seen.pop(f"{place} itself") for place in looped}
    for place, record in seen.items():
        # in a loop it must be what comes last: what the module gives is then the very tensor that the context gave
        given = around.get(place, record).outputs
        if record.calls != calls[place] or list(map(id, given)) != list(map(id, record.outputs)):
            raise InputError(
                f"{CALL}: with a context '{place}' gives something else than before, because it goes through all of "
                "its children itself; name the module around it or one inside"
            )


@contextmanager
def _finite_features(made: dict[str, InsertedContext]) -> Iterator[None]:
    """Refuse what no gate leaves as it is: inf - inf is NaN, and a context spreads NaN over the map.

    Looked at as the contexts are called, since a network may change its features in place later.
    """
    found: list[str] = []

    def look(place: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            if not args[0].is_meta and not args[0].isfinite().all():
                found.append(place)

        return hook

    handles = [
        inserted.register_forward_pre_hook(look(place)) for place, inserted in made.items() if inserted.gate is not None
    ]
    try:
        yield
    except Exception:
        if not found:  # else it comes of the NaN that were made
            raise
    finally:
        for handle in handles:
            handle.remove()
    if found:
        raise InputError(
            f"{CALL}: '{found[0]}' gives features that are not finite (a mask of -inf, or weights that are not there "
            "yet), which a gate would not leave as they are; name a module before them, or use gate=None"
        )


def _gives_back(inserted: InsertedContext, x: Tensor) -> bool:
    """Whether a context begins as the identity, as some do whose last layer is zero at first.

    Looked at on large numbers of both signs (x may be zero all over, or hide a ReLU), and in training mode as well, in
    which a dropout is none.
    """
    if x.is_meta:  # no numbers to tell it by
        return False
    probe = 10 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    for training in (False, True):
        with quiet(inserted, training=training):
            try:
                came = inserted.form.run(inserted.context, probe)
            except Exception:  # batch norm in training mode takes no single value
                return False
        if not torch.equal(came, probe):
            return False
    return True


def _try(place: str, inserted: InsertedContext, x: Tensor) -> None:
    """Run a context by itself on features of its place, so that an error can name the place."""
    kind = type(inserted.context).__name__
    version = x._version
    try:
        with quiet(inserted):
            y = inserted.form.run(inserted.context, x)
    except Exception as error:
        raise ShapeError(
            f"{CALL}: {kind} cannot take the features {tuple(x.shape)} of '{place}', read as "
            f"'{inserted.form.layout}': {error}"
        ) from error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        came = tuple(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ShapeError(
            f"{CALL}: a context keeps the shape of its input, but {kind} gives {came} for {tuple(x.shape)}"
        )
    if x._version != version:
        raise InputError(f"{CALL}: {kind} changes its input in place, which the gate still needs; build it without")
