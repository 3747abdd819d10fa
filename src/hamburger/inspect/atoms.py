"""The atoms of a ham on an image: their codes as maps over the positions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, OptionError, ShapeError
from hamburger.hams.decompose import Decomposition, run
from hamburger.inspect.hooks import LayerActivations, get_layer, record_activations
from hamburger.layers.ham import HamLayer


class CodeMaps(NamedTuple):
    """The atoms of each head, sorted by falling energy.

    `maps`: b s r h w, the codes C of each atom over the positions.    `bases`: b s d r, the atoms D themselves.
    `energies`: b s r, the squared norm of each atom's part of D C; rescaling between D and C does not change it.
    """

    maps: Tensor
    bases: Tensor
    energies: Tensor


def list_ham_layers(model: nn.Module) -> dict[str, HamLayer]:
    """The hams inside the model, by dotted name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, HamLayer)}


def code_maps(
    model: nn.Module, image: Tensor, *, layer: str | None = None, size: tuple[int, int] | None = None
) -> CodeMaps:
    """The codes that a ham of the model computes in evaluation.   image: 3 h w or b 3 h w, as the model takes it

    `layer` names a ham, or a module that contains exactly one; leave it out where the model contains exactly one.
    `size` is (h, w) of the ham's positions; leave it out where a module around the ham works on such a map. If the ham
    has up to w - 1 more positions, the last h w are the map: class tokens and the like come first. A ham that
    factorises along the channels has its maps in D, not in C; then `maps` is D and `bases` is C.
    """
    name = find_ham(model, layer)
    module = get_layer("code_maps", model, name)
    assert isinstance(module, HamLayer)
    image = image[None] if isinstance(image, Tensor) and image.dim() == 3 else image
    around = [name[:i] for i in range(len(name)) if name[i] == "."]
    activations = record_activations("code_maps", model, image, [name], optional=["", *around])
    solution = solve_layer(module, activations[name].before)
    h, w = size or _map_size(name, activations, [*reversed(around), ""])

    heads = module.heads
    maps, bases = (
        (solution.codes, solution.bases) if module.axis == "spatial" else (solution.bases.mT, solution.codes.mT)
    )
    if not 0 <= maps.shape[2] - h * w < w:
        raise ShapeError(
            f"code_maps: size {h} x {w} does not fit the {maps.shape[2]} positions of '{name}'; give (h, w) with as "
            f"many positions, or up to w - 1 fewer (tokens before the map are left out)"
        )
    energies = maps.square().sum(2) * bases.square().sum(1)  # (b s) r
    energies, order = energies.sort(dim=1, descending=True, stable=True)
    maps = maps.gather(1, order[:, :, None].expand_as(maps))
    bases = bases.gather(2, order[:, None].expand_as(bases))
    return CodeMaps(
        maps[:, :, -h * w :].unflatten(0, (-1, heads)).unflatten(3, (h, w)),
        bases.unflatten(0, (-1, heads)),
        energies.unflatten(0, (-1, heads)),
    )


def fold_heads(layer: HamLayer, x: Tensor) -> Tensor:
    """The matrices the layer factorises: heads in the batch, transposed for channels.   b d n   ->   (b s) d n"""
    heads = x.unflatten(1, (layer.heads, -1)).flatten(0, 1)
    return heads if layer.axis == "spatial" else heads.mT


def prepare_solve(layer: HamLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices the layer factorises in evaluation, and its first bases.   b d n   ->   (b s) d n, (b s or 1) d r"""
    data = fold_heads(layer, x)
    mode = layer.dictionary.training
    layer.dictionary.eval()  # in training mode it would draw random bases
    try:
        with torch.no_grad():
            bases = layer.dictionary(data)
    finally:
        layer.dictionary.train(mode)
    assert bases is not None
    return data, bases


def solve_layer(layer: HamLayer, x: Tensor) -> Decomposition:
    """Decompose x as the layer does in evaluation.   b d n   ->   bases (b s) d r, codes (b s) r n"""
    data, bases = prepare_solve(layer, x)
    with torch.no_grad():
        return run(data, layer.ham, steps=layer.eval_steps, grad=layer.grad, bases=bases)


def find_ham(model: nn.Module, layer: str | None = None, *, call: str = "code_maps") -> str:
    """The full name of the ham that `layer` is or contains; without `layer`, of the model's only ham."""
    hams = list_ham_layers(model)
    if layer is not None:
        get_layer(call, model, layer)
        hams = {name: ham for name, ham in hams.items() if name == layer or not layer or name.startswith(f"{layer}.")}
    where = "the model" if not layer else f"layer '{layer}'"
    if not hams:
        raise InputError(f"{call}: {where} contains no ham; name a Hamburger layer")
    if len(hams) > 1:
        # of the two hams of a dual Hamburger, the spatial one is the paper's
        spatial = [name for name, ham in hams.items() if ham.axis == "spatial"]
        if len(spatial) != 1:
            raise OptionError(f"{call}: {where} contains several hams; name one with layer=: {', '.join(hams)}")
        return spatial[0]
    return next(iter(hams))


def _map_size(name: str, activations: dict[str, LayerActivations], around: list[str]) -> tuple[int, int]:
    """(h, w) of the innermost surrounding map with as many positions as the ham."""
    n = activations[name].before.shape[2]
    for outer in around:
        before = activations[outer].before if outer in activations else torch.empty(0)
        if before.dim() == 4 and before.shape[2] * before.shape[3] == n:
            return before.shape[2], before.shape[3]
    raise ShapeError(
        f"code_maps: no module around '{name}' works on a map of its {n} positions; give size=(h, w) of the map "
        f"that the last positions form"
    )
