"""The n x n matrices of attention layers, of any model by the layer's name: a ham has factors in their place."""

from __future__ import annotations

from torch import Tensor, nn

from hamburger.analysis.hooks import evaluating, look, module_named
from hamburger.errors import InputError


def attention_layers(model: nn.Module) -> list[str]:
    """Names of the layers that can show their matrix: those with a method `attention`, such as `sa` and `nonlocal`."""
    return [name for name, module in model.named_modules() if callable(getattr(module, "attention", None))]


def attention_maps(model: nn.Module, images: Tensor, layer: str) -> Tensor:
    """A of the named layer on these images.   images: b 3 h w, as the model takes them   ->   b heads n m

    `layer` has such a matrix, or holds one layer that has. Row i says what position i takes from every other.
    """
    module_named("attention_maps", model, layer)
    inside = [name for name in attention_layers(model) if not layer or name == layer or name.startswith(f"{layer}.")]
    if len(inside) != 1:
        known = f"; there are: {', '.join(inside)}" if inside else ": it has no attention that can be shown"
        raise InputError(f"attention_maps: layer '{layer}' must hold one attention{known}")
    seen = look("attention_maps", model, images, inside)[inside[0]]
    with evaluating(model):
        maps: Tensor = module_named("attention_maps", model, inside[0]).attention(seen.before)  # type: ignore[operator]
    return maps
