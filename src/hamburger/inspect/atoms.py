"""What the atoms of a ham stand for: their codes as maps over the image."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, OptionError, ShapeError
from hamburger.hams.decompose import Decomposition, run
from hamburger.inspect.hooks import LayerActivations, get_layer, record_activations
from hamburger.layers.ham import HamLayer


class CodeMaps(NamedTuple):
    """The atoms of each head by falling energy.

    `maps`: b s r h w, the codes C of each atom over the positions.    `bases`: b s d r, the atoms D themselves.
    `energies`: b s r, the squared norm of each atom's part of D C, which no rescaling between D and C changes.
    """

    maps: Tensor
    bases: Tensor
    energies: Tensor


def list_ham_layers(model: nn.Module) -> dict[str, HamLayer]:
    """Every ham inside the model, by its dotted name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, HamLayer)}


def code_maps(
    model: nn.Module, image: Tensor, *, layer: str | None = None, size: tuple[int, int] | None = None
) -> CodeMaps:
    """The codes that a ham of the model finds in evaluation.   image: 3 h w or b 3 h w, as the model takes it

    `layer` is the name of a ham, or of a module that holds exactly one; it can be left out where the model does. `size`
    is (h, w) of the ham's positions; it can be left out where a module around the ham works on such a map. Where the
    ham has some more positions, fewer than a row, the last h w are the map: before them are class tokens and the like.
    A ham that factorises along the channels holds its maps in D instead of C: then those are `maps`, C is in `bases`.
    """
    name = find_ham(model, layer)
    module = get_layer("code_maps", model, name)
    assert isinstance(module, HamLayer)
    image = image[None] if isinstance(image, Tensor) and image.dim() == 3 else image
    around = [name[:i] for i in range(len(name)) if name[i] == "."]
    seen = record_activations("code_maps", model, image, [name], beside=["", *around])
    found = solve_layer(module, seen[name].before)
    h, w = size or _size(name, seen, [*reversed(around), ""])

    heads = module.heads
    maps, bases = (found.codes, found.bases) if module.axis == "spatial" else (found.bases.mT, found.codes.mT)
    if not 0 <= maps.shape[2] - h * w < w:
        raise ShapeError(
            f"code_maps: size {h} x {w} does not fit the {maps.shape[2]} positions of '{name}'; give (h, w) of a map "
            f"that has as many, or up to w - 1 fewer: tokens before it are left out"
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
    """As the layer factorises it: heads in the batch, along the channels transposed.   b d n   ->   (b s) d n"""
    heads = x.unflatten(1, (layer.heads, -1)).flatten(0, 1)
    return heads if layer.axis == "spatial" else heads.mT


def prepare_solve(layer: HamLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the layer factorises in evaluation, and its first bases.   b d n   ->   (b s) d n, (b s or 1) d r"""
    data = fold_heads(layer, x)
    mode = layer.dictionary.training
    layer.dictionary.eval()  # or it would be drawn
    try:
        with torch.no_grad():
            bases = layer.dictionary(data)
    finally:
        layer.dictionary.train(mode)
    assert bases is not None
    return data, bases


def solve_layer(layer: HamLayer, x: Tensor) -> Decomposition:
    """What the layer finds in evaluation.   b d n   ->   bases (b s) d r, codes (b s) r n: heads fold into the batch"""
    data, bases = prepare_solve(layer, x)
    with torch.no_grad():
        return run(data, layer.ham, steps=layer.eval_steps, grad=layer.grad, bases=bases)


def find_ham(model: nn.Module, layer: str | None = None, *, call: str = "code_maps") -> str:
    """The full name of the ham that `layer` names or holds, or of the model's only one."""
    hams = list_ham_layers(model)
    if layer is not None:
        get_layer(call, model, layer)
        hams = {name: ham for name, ham in hams.items() if name == layer or not layer or name.startswith(f"{layer}.")}
    where = "the model" if not layer else f"layer '{layer}'"
    if not hams:
        raise InputError(f"{call}: there is no ham in {where}; a Hamburger layer has one")
    if len(hams) > 1:
        # the two hams of a dual Hamburger: the one along positions is the paper's
        spatial = [name for name, ham in hams.items() if ham.axis == "spatial"]
        if len(spatial) != 1:
            raise OptionError(f"{call}: {where} has several hams; name one by layer=: {', '.join(hams)}")
        return spatial[0]
    return next(iter(hams))


def _size(name: str, seen: dict[str, LayerActivations], around: list[str]) -> tuple[int, int]:
    """(h, w) of the innermost map around the ham that has as many positions as the ham."""
    n = seen[name].before.shape[2]
    for outer in around:
        before = seen[outer].before if outer in seen else torch.empty(0)
        if before.dim() == 4 and before.shape[2] * before.shape[3] == n:
            return before.shape[2], before.shape[3]
    raise ShapeError(
        f"code_maps: no module around '{name}' works on a map of its {n} positions; give size=(h, w) of the map, which "
        f"are the last of them"
    )
