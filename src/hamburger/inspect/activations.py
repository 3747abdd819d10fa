"""What a named layer of any model receives and returns: feature maps, their spectra, and attention matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.devices import to_double
from hamburger.errors import InputError, OptionError, ShapeError, UnknownNameError, did_you_mean
from hamburger.tensors import check_tensor, list_tensors


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
    def on_entry(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if tensors := list_tensors((args, kwargs)):
            received[name] = tensors[0].detach().clone()

    def on_exit(name: str, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if (tensors := list_tensors(output)) and name in received:
            activations[name] = LayerActivations(received[name], tensors[0].detach().clone())

    handles = []
    try:
        for name in (*layers, *optional):
            module = get_layer(call, model, name)
            handles.append(module.register_forward_pre_hook(partial(on_entry, name), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(on_exit, name)))
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


# -- spectra (Fig. 5) --------------------------------------------------------------------------------------------------


class Spectrum(NamedTuple):
    """Cumulative shares of energy of a layer's input and output, one row per image.

    `before`: b m    `after`: b m'    with m = min(c, n); entry i: share of the i + 1 largest singular values.
    """

    before: Tensor
    after: Tensor


def spectrum(model: nn.Module, images: Tensor, layer: str, *, channels: int = 1) -> Spectrum:
    """Spectra of the input and output of the named layer of any model.   images: b 3 h w, as the model takes them

    The model runs once in evaluation mode, with hooks that are removed afterwards. Of several inputs or outputs the
    first tensor counts. For a Hamburger named "context", `layer="context"` is Fig. 5 (the skip included) and
    `layer="context.ham"` the low-rank reconstruction alone. `channels` is the channel axis, such as -1 for a layer
    that works on (b, h, w, c); tokens (b, n, c) have the same spectrum either way.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
    >>> spectrum(net, torch.rand(2, 3, 5, 5), "1").after.shape
    torch.Size([2, 8])
    """
    activations = record_activations("spectrum", model, images, [layer])[layer]
    before, after = (cumulative_energy(channels_second("spectrum", each, channels)) for each in activations)
    return Spectrum(before, after)


def channels_second(call: str, x: Tensor, channels: int) -> Tensor:
    """Move the channels to the second axis.   ->   b c *spatial"""
    if x.dim() < 3:
        raise ShapeError(f"{call}: needs a non-empty map (b, c, *spatial) (got {tuple(x.shape)})")
    if not -x.dim() < channels < x.dim() or channels == 0:
        raise OptionError(f"{call}: channels must be an axis of {tuple(x.shape)} after the batch (got {channels})")
    return x.movedim(channels, 1)


def cumulative_energy(x: Tensor) -> Tensor:
    """Share of energy (squared singular values) in the largest ones.   b c *spatial   ->   b min(c, n), float64

    Each sample is unfolded to c x n. A sample of zeros gives zeros.
    """
    if x.dim() < 3 or 0 in x.shape:
        raise ShapeError(f"spectrum: needs a non-empty map (b, c, *spatial) (got {tuple(x.shape)})")
    rows = to_double(x.detach().flatten(2))
    gram = rows @ rows.mT if rows.shape[1] <= rows.shape[2] else rows.mT @ rows
    # eigenvalues of the Gram matrix are the squared singular values, many times faster than an SVD on a GPU
    energy = torch.linalg.eigvalsh(gram).flip(1).clamp_min(0).cumsum(1)
    return energy / energy[:, -1:].clamp_min(torch.finfo(energy.dtype).tiny)


def rank_for(shares: Tensor, share: float) -> Tensor:
    """The number of singular values that hold that share of the energy.   b m   ->   b, whole numbers"""
    # the last share is 1 up to rounding: never return more than there are
    return (shares < share).sum(1).add(1).clamp_max(shares.shape[1])


def effective_rank(shares: Tensor) -> Tensor:
    """Effective rank: the exponential of the entropy of the energy.   b m   ->   b, 1 ... m

    `shares` are cumulative, from `cumulative_energy`. Equal singular values give m, a single one gives 1.
    """
    parts = shares.diff(dim=1, prepend=shares.new_zeros(len(shares), 1)).clamp_min(0)
    return torch.special.entr(parts).sum(1).exp()


# -- feature maps (Fig. 6) --------------------------------------------------------------------------------------------


class FeatureMaps(NamedTuple):
    """`before`, `after`: b c *spatial, in the model's order of channels.    `energies_*`: b c, squared norms."""

    before: Tensor
    after: Tensor
    energies_before: Tensor
    energies_after: Tensor


def feature_maps(model: nn.Module, images: Tensor, layer: str, *, channels: int = 1) -> FeatureMaps:
    """Input and output of the named layer in evaluation.   images: b 3 h w, as the model takes them

    `channels` is the channel axis of both, such as -1 for channels-last layers.
    """
    activations = record_activations("feature_maps", model, images, [layer])[layer]
    maps = [channels_second("feature_maps", each, channels) for each in activations]
    return FeatureMaps(*maps, *(to_double(each).flatten(2).square().sum(2) for each in maps))


def strongest(maps: Tensor, energies: Tensor) -> Tensor:
    """Sort the channels of each image by falling energy.   b c *spatial, b c   ->   b c *spatial"""
    order = energies.argsort(dim=1, descending=True, stable=True)
    return maps.flatten(2).gather(1, order[:, :, None].expand(-1, -1, maps[0, 0].numel())).view_as(maps)


# -- attention matrices ------------------------------------------------------------------------------------------------


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
    activations = record_activations("attention_maps", model, images, inside)[inside[0]]
    with evaluation_mode(model):
        maps: Tensor = get_layer("attention_maps", model, inside[0]).attention(activations.before)  # type: ignore[operator]
    return maps
