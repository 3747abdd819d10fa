"""Run a network once without leaving a trace: what it gives at a place, and compiled code that must be dropped."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from hamburger.errors import InputError


def uncompiled() -> AbstractContextManager[Any]:
    """Run a compiled network as it is written, with the hooks of a dry run."""
    return torch.compiler.set_stance("force_eager") if _in_use() else nullcontext()


def compile_again() -> None:
    """Have all networks compiled anew at their next call: which of them hold the changed one nobody knows."""
    if _in_use():
        torch.compiler.reset()


def _in_use() -> bool:
    return "torch._dynamo" in sys.modules


# ----------------------------------------------------------------------------------------------------------------------
# A forward pass that leaves no trace: what a network gives at a place, found by running it once.


# The first is small: a context that holds a number for each pair of positions has 10 GB of them at 224 x 224.
SIZES = (112, 224, 32, 64, 128, 256, 28, 384, 512)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Seen:
    """What a module was given first, and what it gave at each call."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self.outputs: list[Any] = []

    @property
    def calls(self) -> int:
        return len(self.outputs)

    @property
    def output(self) -> Any:
        return self.outputs[0] if self.outputs else None


def watch(call: str, model: nn.Module, places: Mapping[str, nn.Module], example: Any) -> tuple[dict[str, Seen], Any]:
    """Run the model once and look at the places; also the example, where none was given one that the model takes."""
    if example is not None:
        try:
            return _look(model, places, example), example
        except Exception as error:
            raise InputError(
                f"{call}: the model could not run on the example ({_one_line(error)}); "
                "example= takes one input tensor, a tuple of positional arguments or a dict of keyword arguments"
            ) from error
    failure: Exception | None = None
    for made in _examples(call, model):
        try:
            return _look(model, places, made), made
        except Exception as error:  # the wrong size can fail in any way
            failure = failure or error
    raise InputError(
        f"{call}: {type(model).__name__} runs on none of the inputs that were tried, the first with "
        f"{_one_line(failure)}; give example="
    ) from failure


def _look(model: nn.Module, places: Mapping[str, nn.Module], example: Any) -> dict[str, Seen]:
    seen = {name: Seen() for name in places}

    def look(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            record = seen[name]
            if not record.outputs:
                record.given = (*args, *kwargs.values())
            record.outputs.append(output)

        return hook

    # in front of hooks of others, as a context will be
    handles = [
        module.register_forward_hook(look(name), prepend=True, with_kwargs=True) for name, module in places.items()
    ]
    try:
        with quiet(model):
            call_with(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def call_with(model: nn.Module, example: Any) -> None:
    with uncompiled():
        if isinstance(example, tuple):
            model(*example)
        elif isinstance(example, dict):
            model(**example)
        else:
            model(example)


@contextmanager
def quiet(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Evaluation (or training mode) without gradients; attributes, buffers and random numbers are afterwards as they
    were.
    """
    flags = [(module, module.training) for module in model.modules()]
    attributes = [(module, _held(module)) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type == "cuda"}
    dice = random.getstate()
    numpy: Any = sys.modules.get("numpy.random")  # only where it is in use: nothing here needs it
    drawn = None if numpy is None else numpy.get_state(legacy=False)
    try:
        for module, _ in flags:  # not by eval(): networks override it, to fold weights for example
            module.training = training
        with torch.random.fork_rng(list(devices)), torch.no_grad():
            yield
    finally:
        random.setstate(dice)
        if drawn is not None:
            numpy.set_state(drawn)
        for module, flag in flags:
            module.training = flag
        for module, held in attributes:
            _give_back(module, held)
        with torch.no_grad():
            for buffer, before in buffers:
                # sparse ones cannot be compared
                if not buffer.is_meta and not (buffer.layout is torch.strided and torch.equal(buffer, before)):
                    buffer.copy_(before)


def _held(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Attributes by name, and a copy of what is in those that are containers."""
    return {name: (value, _copied(value)) for name, value in vars(module).items()}


def _copied(value: Any) -> Any:
    return next((kind(value) for kind in (dict, list, set) if isinstance(value, kind)), None)


def _give_back(module: nn.Module, held: dict[str, tuple[Any, Any]]) -> None:
    """Undo what a forward pass keeps in its module.

    The LeViT of timm, for one, keeps what it makes of its weights in evaluation: weights that are loaded next would not
    be heard.
    """
    now = vars(module)
    for name in now.keys() - held.keys():
        del now[name]
    for name, (value, content) in held.items():
        now[name] = value
        if content is not None and _inside(value) != _inside(content):
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)


def _inside(container: Any) -> list[int]:
    """Which objects, not what they are equal to: tensors do not say that in one word."""
    values = container.values() if isinstance(container, dict) else ()
    return [id(each) for each in (*container, *values)]


def _examples(call: str, model: nn.Module) -> Iterator[Tensor]:
    """Inputs for a usual network on images, of the sizes that it may take."""
    first = next((module for module in model.modules() if isinstance(module, CONVOLUTIONS)), None)
    if first is None:
        raise InputError(f"{call}: {type(model).__name__} has no convolution that shows its input; give example=")
    axes = CONVOLUTIONS.index(next(kind for kind in CONVOLUTIONS if isinstance(first, kind))) + 1
    like = next(first.parameters())  # not .weight, which spectral norms compute, with a step of their own in training
    told = (tuple(size) for size in _own_sizes(model) if len(size) == axes)
    for sides in dict.fromkeys((*told, *((size,) * axes for size in (SIZES if axes < 3 else (32, 64))))):
        made = torch.rand(1, first.in_channels, *sides, generator=torch.Generator().manual_seed(0), device="cpu")
        yield made.to(like.device, like.dtype)


def check_ready(call: str, model: object) -> None:
    model = check_bare(call, model, "would not average the gradients of what comes later")
    if torch.is_inference_mode_enabled():
        raise InputError(
            f"{call}: called under torch.inference_mode(), in which parameters are made that can never be trained; "
            "leave it, torch.no_grad() is no hindrance"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise InputError(f"{call}: '{name}' has no size yet (a lazy module); run the model once before")


def check_bare(call: str, model: object, why: str) -> nn.Module:
    """A module that DistributedDataParallel, of which `why` tells what it would do, does not hold yet."""
    if not isinstance(model, nn.Module):
        raise InputError(f"{call}: the model must be a torch.nn.Module, got {type(model).__name__}")
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise InputError(
            f"{call}: the model is in DistributedDataParallel already, which {why}; call this on the bare model, then "
            "wrap it"
        )
    return model


def _own_sizes(model: nn.Module) -> Iterator[tuple[int, ...]]:
    """What networks of timm and torchvision say about the height and width of their input."""
    patches: Any = getattr(model, "patch_embed", None)
    config: Any = getattr(model, "pretrained_cfg", None)
    told = [getattr(patches, "img_size", None), getattr(model, "image_size", None)]
    told.append(config.get("input_size") if isinstance(config, dict) else None)
    for size in told:
        sides = tuple(size[-2:]) if isinstance(size, (tuple, list)) else (size, size)
        if all(isinstance(side, int) and side > 0 for side in sides):
            yield sides


def _one_line(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'...' if len(text) > 200 else ''}"


def dtype_of(model: nn.Module, module: nn.Module, x: Tensor) -> torch.dtype:
    """What weights beside a module should have: those of its own, or else the model's.

    Its features tell where both are there; under autocast they are of a dtype in which no weight is kept.
    """
    for owner in (module, model):
        found = [parameter.dtype for parameter in owner.parameters() if parameter.is_floating_point()]
        if found:
            return x.dtype if x.dtype in found else found[0]
    return x.dtype


def is_feature(output: Any) -> bool:
    return isinstance(output, Tensor) and output.is_floating_point()
