"""Record what a named layer of any model receives and returns, and its attention matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, ShapeError, UnknownNameError, did_you_mean
from hamburger.tensors import check_tensor


class LayerActivations(NamedTuple):
    """The first tensor a layer received and the first it returned, in one call of the model."""

    before: Tensor
    after: Tensor


def get_layer(call: str, model: nn.Module, layer: str) -> nn.Module:
    """The module with that dotted name; the empty name is the model itself."""
    modules = dict(model.named_modules())
    if layer not in modules:
        known = [name for name in modules if name]
        raise UnknownNameError(f"{call}: the model has no layer '{layer}'{did_you_mean(layer, known)}")
    return modules[layer]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards, each module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def record_activations(
    call: str, model: nn.Module, images: Tensor, layers: Sequence[str], *, optional: Sequence[str] = ()
) -> dict[str, LayerActivations]:
    """Run the model once and return the activations of the named layers.   images: b 3 h w, as the model takes them

    Of a layer that is called several times, the last call counts. A layer in `optional` is left out if it is never
    called or returns no tensor.
    """
    check_tensor(call, "the images", images)
    if images.dim() < 2:
        raise ShapeError(f"{call}: the images must have a batch axis (got {tuple(images.shape)}); add it with [None]")
    if not bool(torch.isfinite(images).all()):
        raise InputError(f"{call}: the images hold values that are not finite; fix them first")
    received: dict[str, Tensor] = {}
    activations: dict[str, LayerActivations] = {}

    # both are copied: this layer and later ones may work in place
    def on_entry(name: str) -> Any:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensor = _first_tensor((*args, *kwargs.values()))
            if tensor is not None:
                received[name] = tensor.detach().clone()

        return record

    def on_exit(name: str) -> Any:
        def record(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            tensor = _first_tensor(output)
            if tensor is not None and name in received:
                activations[name] = LayerActivations(received[name], tensor.detach().clone())

        return record

    handles = []
    try:
        for name in (*layers, *optional):
            module = get_layer(call, model, name)
            handles.append(module.register_forward_pre_hook(on_entry(name), with_kwargs=True))
            handles.append(module.register_forward_hook(on_exit(name)))
        with evaluation_mode(model):
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    for name in layers:
        if name not in activations:
            raise InputError(f"{call}: layer '{name}' was not called on these images, or takes or returns no tensor")
        for what, tensor in zip(("receives", "returns"), activations[name], strict=True):
            if not bool(torch.isfinite(tensor).all()):
                raise InputError(
                    f"{call}: layer '{name}' {what} values that are not finite, for finite images; check "
                    f"the model's weights"
                )
    return activations


def _first_tensor(value: Any) -> Tensor | None:
    """The first tensor in nested tuples, lists and dicts, as modules take and return them."""
    if isinstance(value, Tensor):
        return value
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return next((tensor for entry in entries if (tensor := _first_tensor(entry)) is not None), None)


def attention_layers(model: nn.Module) -> list[str]:
    """Names of the layers with a method `attention` that returns their n x n matrix, such as `sa` and `nonlocal`."""
    return [name for name, module in model.named_modules() if callable(getattr(module, "attention", None))]


def attention_maps(model: nn.Module, images: Tensor, layer: str) -> Tensor:
    """The attention matrix of the named layer.   images: b 3 h w, as the model takes them   ->   b heads n m

    `layer` is an attention layer, or contains exactly one. Row i holds the weights with which position i reads all
    others.
    """
    get_layer("attention_maps", model, layer)
    inside = [name for name in attention_layers(model) if not layer or name == layer or name.startswith(f"{layer}.")]
    if len(inside) != 1:
        known = f"; it has: {', '.join(inside)}" if inside else "; it has none"
        raise InputError(f"attention_maps: layer '{layer}' must contain one attention layer{known}")
    seen = record_activations("attention_maps", model, images, inside)[inside[0]]
    with evaluation_mode(model):
        maps: Tensor = get_layer("attention_maps", model, inside[0]).attention(seen.before)  # type: ignore[operator]
    return maps
