"""Run a network once to record what its modules return, and leave no trace of that run."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from hamburger.devices import keep_random_state
from hamburger.errors import HamburgerError, InputError, ShapeError

# image sizes to try; the first is small: an attention matrix over all pairs of positions takes 10 GB at 224 x 224
TRIED_SIZES = (112, 224, 32, 64, 128, 256, 28, 384, 512)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# layers whose channels are axis 1, for features with three, four and five axes
CHANNEL_FIRST_LAYERS = (
    (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d),
    (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
    (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d),
)


# -- checks before the run ---------------------------------------------------------------------------------------------


def check_model(call: str, model: object) -> None:
    """Raise unless the model is a module outside DistributedDataParallel."""
    if not isinstance(model, nn.Module):
        raise InputError(f"{call}: the model must be a torch.nn.Module, got {type(model).__name__}")
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise InputError(
            f"{call}: the model is already wrapped in DistributedDataParallel, which averages the gradients of the "
            f"parameters it was built with, no more and no fewer; call {call} on the bare model, then wrap it"
        )


def check_ready(call: str, model: nn.Module) -> None:
    """Raise unless contexts can be inserted into the model."""
    check_model(call, model)
    if torch.is_inference_mode_enabled():
        raise InputError(
            f"{call}: called under torch.inference_mode(), where new parameters can never be trained; call it outside "
            "torch.inference_mode() (torch.no_grad() is fine)"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise InputError(f"{call}: '{name}' has no size yet (a lazy module); run the model once first")


@contextmanager
def name_place(call: str, place: str) -> Iterator[None]:
    """Put the call and the place before the message of an error of this library."""
    try:
        yield
    except HamburgerError as error:
        raise type(error)(f"{call}, '{place}': {error}") from error


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass
class ModuleCalls:
    """The arguments of a module's first call, its outputs at every call, and whether all its inputs were finite."""

    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    finite: bool = True

    def record(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The forward hook."""
        inputs = (*args, *kwargs.values())
        if not self.outputs:
            self.arguments, self.keywords = args, kwargs
        self.outputs.append(output)
        # now, since a network may change its features in place afterwards
        features = [x for x in inputs if is_feature(x) and not (x.is_meta or x.is_nested or x.is_sparse)]
        self.finite &= all(bool(x.isfinite().all()) for x in features)


def is_feature(output: Any) -> bool:
    return isinstance(output, Tensor) and output.is_floating_point()


def record_calls(
    call: str, model: nn.Module, places: Mapping[str, nn.Module], example: Any
) -> tuple[dict[str, ModuleCalls], Any]:
    """Run the model once and return the calls of each module, and the example that was used."""
    if example is not None:
        try:
            return _run_and_record(model, places, example), example
        except Exception as error:
            raise InputError(
                f"{call}: the model could not run on the example ({_summarise_error(error)}); "
                "example= takes one input tensor, a tuple of positional arguments or a dict of keyword arguments"
            ) from error
    failure: Exception | None = None
    for guess in _guess_examples(call, model):
        try:
            return _run_and_record(model, places, guess), guess
        except Exception as error:  # a wrong size can raise anything
            failure = failure or error
    raise InputError(
        f"{call}: {type(model).__name__} failed on every input that was tried (first error: "
        f"{_summarise_error(failure)}); pass example="
    ) from failure


def _summarise_error(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'...' if len(text) > 200 else ''}"


def _run_and_record(model: nn.Module, places: Mapping[str, nn.Module], example: Any) -> dict[str, ModuleCalls]:
    calls = {name: ModuleCalls() for name in places}
    # before all other hooks, where the context will run
    handles = [
        module.register_forward_hook(calls[name].record, prepend=True, with_kwargs=True)
        for name, module in places.items()
    ]
    try:
        run_once(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def run_once(model: nn.Module, example: Any) -> None:
    """Run the model on an example and restore its state; a compiled model runs eagerly, so that hooks are called."""
    eagerly = torch.compiler.set_stance("force_eager") if _dynamo_is_loaded() else nullcontext()
    with preserve_state(model), eagerly:
        if isinstance(example, dict):
            model(**example)
        else:
            model(*(example if isinstance(example, tuple) else (example,)))


def check_alone(call: str, place: str, run: Callable[[Tensor], Any], module: nn.Module, x: Tensor) -> None:
    """Run a context alone on features x, so that an error can name its place; raise unless it keeps their shape."""
    kind = type(module).__name__
    try:
        with preserve_state(module):
            y = run(x)
    except Exception as error:
        raise ShapeError(f"{call}: {kind} cannot take the features {tuple(x.shape)} of '{place}': {error}") from error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        result = tuple(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ShapeError(
            f"{call}: a context must keep the shape of its input, but {kind} returns {result} for the features "
            f"{tuple(x.shape)} of '{place}'"
        )


def reset_compiled_code() -> None:
    """Make torch recompile every network at its next call: any of them may contain the changed one.

    Not by torch.compiler.reset(), which crashes torch 2.6 after some dozen calls.
    """
    if _dynamo_is_loaded():
        torch._dynamo.reset_code_caches()


def _dynamo_is_loaded() -> bool:
    return "torch._dynamo" in sys.modules


@contextmanager
def preserve_state(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Context manager: evaluation (or training) mode without gradients; afterwards the model's state is restored.

    Restored are training flags, attributes, buffers, and the random states of Python, numpy and torch.
    """
    flags = [(module, module.training) for module in model.modules()]
    attributes = [(module, _copy_attributes(module)) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {tensor.device for tensor in model.parameters()}
    python_state = random.getstate()
    numpy: Any = sys.modules.get("numpy.random")  # only if imported: nothing here needs it
    numpy_state = None if numpy is None else numpy.get_state(legacy=False)
    try:
        for module, _ in flags:  # not by eval(): some networks override it, for example to fold weights
            module.training = training
        with keep_random_state(devices), torch.no_grad():
            yield
    finally:
        random.setstate(python_state)
        if numpy_state is not None:
            numpy.set_state(numpy_state)
        for module, flag in flags:
            module.training = flag
        for module, copies in attributes:
            _restore_attributes(module, copies)
        with torch.no_grad():
            for buffer, before in buffers:
                # sparse buffers cannot be compared
                if not buffer.is_meta and not (buffer.layout is torch.strided and torch.equal(buffer, before)):
                    buffer.copy_(before)


def _copy_attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return each attribute, and a shallow copy of it if it is a container, else None."""
    kinds = (dict, list, set)
    return {
        name: (value, next((kind(value) for kind in kinds if isinstance(value, kind)), None))
        for name, value in vars(module).items()
    }


def _restore_attributes(module: nn.Module, copies: dict[str, tuple[Any, Any]]) -> None:
    """Undo what a forward pass stored in its module.

    Example: timm's LeViT caches attention biases in evaluation mode. Left in place, the cache would hide weights that
    are loaded later.
    """
    now = vars(module)
    for name in now.keys() - copies.keys():
        del now[name]
    for name, (value, content) in copies.items():
        now[name] = value
        if content is not None and _object_ids(value) != _object_ids(content):
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)


def _object_ids(container: Any) -> list[int]:
    """Return the identities of the entries: tensors cannot be compared with ==."""
    values = container.values() if isinstance(container, dict) else ()
    return [id(each) for each in (*container, *values)]


def _guess_examples(call: str, model: nn.Module) -> Iterator[Tensor]:
    """Yield random inputs for a network on images, in the sizes it may accept."""
    first = next((module for module in model.modules() if isinstance(module, CONVOLUTIONS)), None)
    if first is None:
        raise InputError(f"{call}: {type(model).__name__} has no convolution that shows its input shape; pass example=")
    axes = CONVOLUTIONS.index(next(kind for kind in CONVOLUTIONS if isinstance(first, kind))) + 1
    like = next(first.parameters())  # not .weight: reading it runs a power iteration under spectral norm in training
    declared = (tuple(size) for size in _declared_input_sizes(model) if len(size) == axes)
    for sides in dict.fromkeys((*declared, *((size,) * axes for size in (TRIED_SIZES if axes < 3 else (32, 64))))):
        example = torch.rand(1, first.in_channels, *sides, generator=torch.Generator().manual_seed(0), device="cpu")
        yield example.to(like.device, like.dtype)


def _declared_input_sizes(model: nn.Module) -> Iterator[tuple[int, ...]]:
    """Yield the input heights and widths that networks of timm, torchvision and transformers declare."""
    config: Any = getattr(model, "pretrained_cfg", None)
    for size in (
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        getattr(model, "image_size", None),
        getattr(getattr(model, "config", None), "image_size", None),
        config.get("input_size") if isinstance(config, dict) else None,
    ):
        sides = tuple(size[-2:]) if isinstance(size, (tuple, list)) else (size, size)
        if all(isinstance(side, int) and side > 0 for side in sides):
            yield sides


# -- what the run shows of the features --------------------------------------------------------------------------------


def choose_dtype(model: nn.Module, module: nn.Module, x: Tensor) -> torch.dtype:
    """Return the dtype for the weights of a context after `module`: that of the module's, or else the model's weights.

    With several dtypes, that of the features x decides. Under autocast x may have a dtype that no weight has.
    """
    for owner in (module, model):
        dtypes = [parameter.dtype for parameter in owner.parameters() if parameter.is_floating_point()]
        if dtypes:
            return x.dtype if x.dtype in dtypes else dtypes[0]
    return x.dtype


def find_layout(where: str, layout: str | None, model: nn.Module, module: nn.Module, features: Sequence[Tensor]) -> str:
    """Return the given layout, or else a guess; raise unless it and the channels are the same at every call."""
    x, guessed = features[0], layout is None
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
    axis = 1 if layout == "channels" else -1
    for other in features[1:]:
        same_channels = other.dim() == x.dim() and other.shape[axis] == x.shape[axis]
        if not same_channels or (guessed and guess_layout(model, module, other) != layout):
            raise InputError(
                f"{where} is called {len(features)} times in one pass and returns {tuple(x.shape)} and "
                f"{tuple(other.shape)}; one context can only follow calls with the same channels on the same axis: "
                "name a module that is called once" + (", or pass the 'layout'" if same_channels else "")
            )
    return layout


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
