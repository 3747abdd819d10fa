"""What a trained context does to its feature map, of which rank it is, and which way its gradients point.

All are means over labelled images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import InputError
from hamburger.hams.decompose import run
from hamburger.hams.gradients import as_gradient
from hamburger.inspect.atoms import list_ham_layers
from hamburger.inspect.hooks import attention_layers, attention_maps, evaluation_mode, record_activations
from hamburger.inspect.spectra import cumulative_energy, effective_rank, numerical_rank, rank_for, shares_at
from hamburger.layers.ham import HamLayer

CONTEXT = "head.context"
SILENT = 0.01  # a channel below this share of the mean channel's size says nothing
IGNORE = 255
STRATEGIES = ("one-step", "truncated:1", "truncated:2")
# how many of the largest singular values the stored spectra speak of
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
Measurements = dict[str, float | list[float]]


def measure_context(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, layer: str = CONTEXT) -> Measurements:
    """Means over images of what the named layer does (Figs. 5 and 6), and of gradients where it holds one ham.

    `batches` are (images b 3 h w as the network takes them, labels b h w). Of the layer's input (`before`) and output
    (`after`), of what its ham hands on (`ham`, D C), of its matrix of n x n where it has one (`attention`, each head
    by itself) and of that matrix less the row that all positions have in common (`centred`): `rank_*` (effective
    rank), `rank90_*` (singular values for 90 % of the energy), `numerical_*` (those that float32 can tell from zero),
    `spectrum_*` (shares of the energy in the COUNTS largest). Further: `silent_*` (share of channels next to zero),
    `common_attention` (share of the matrix's energy in that common row: attention that looks at nothing in particular
    has all of it there, and rank 1), `bound` (the ham's r), `positions` (n), `channels`; `cosine_*` and `norm_*` of
    each gradient of the ham, at the cotangent of the cross-entropy, to and over BPTT.
    """
    found: dict[str, list[Tensor]] = {}

    def add(key: str, values: Tensor) -> None:  # one entry or one row for each image
        found.setdefault(key, []).extend(values.double().cpu())

    hams = {name: module for name, module in list_ham_layers(net).items() if name.startswith(layer)}
    only = next(iter(hams)) if len(hams) == 1 else None
    attentions = [name for name in attention_layers(net) if name.startswith(layer)]
    for images, labels in batches:
        seen = record_activations("look_inside", net, images, [layer] if only is None else [layer, only])
        matrices = {"before": seen[layer].before, "after": seen[layer].after}
        for end in ("before", "after"):
            add(f"silent_{end}", silent_share(matrices[end]))
        if only is not None:
            matrices["ham"] = seen[only].after
        if len(attentions) == 1:
            maps = attention_maps(net, images, layer).flatten(0, 1).double()
            matrices |= {"attention": maps, "centred": maps - maps.mean(1, keepdim=True)}
            add("common_attention", 1 - matrices["centred"].square().sum((1, 2)) / maps.square().sum((1, 2)))
        for part, matrix in matrices.items():
            shares = cumulative_energy(matrix)
            add(f"rank_{part}", effective_rank(shares))
            add(f"rank90_{part}", rank_for(shares, 0.9))
            add(f"numerical_{part}", numerical_rank(shares, max(matrix.flatten(2).shape[1:])))
            add(f"spectrum_{part}", shares_at(shares, COUNTS))
        for key, size in zip(("channels", "positions"), matrices["before"].flatten(2).shape[1:], strict=True):
            add(key, torch.full((len(images),), float(size)))
        if only is not None:
            add("bound", torch.full((len(images),), float(hams[only].ham.rank)))
            for key, value in compare_gradients(net, images, labels, only).items():
                add(key, torch.tensor([value]))
    if not found:
        raise InputError("look_inside: there was no image to look at; give at least one batch")
    means = {key: torch.stack(values).mean(0).tolist() for key, values in found.items()}
    return {key: [round(x, 6) for x in mean] if isinstance(mean, list) else mean for key, mean in means.items()}


def silent_share(maps: Tensor) -> Tensor:
    """Share of channels whose size is next to nothing beside that of the mean channel.   b c *spatial   ->   b"""
    size = maps.detach().double().flatten(2).square().mean(2).sqrt()
    return (size <= SILENT * size.mean(1, keepdim=True)).double().mean(1)


def compare_gradients(net: nn.Module, images: Tensor, labels: Tensor, name: str) -> dict[str, float]:
    """Cosine to BPTT and norm over BPTT's, of dL/dX by each strategy.   images: b 3 h w

    Nothing where BPTT vanishes or is not finite: a NaN would make the row of a whole network unreadable.
    """
    layer = net.get_submodule(name)
    assert isinstance(layer, HamLayer)
    if layer.axis != "spatial":
        return {}
    kept: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        kept.extend((args[0].detach(), out))

    handle = layer.register_forward_hook(keep)
    try:
        with evaluation_mode(net), torch.enable_grad():
            loss = F.cross_entropy(net(images).float(), labels, ignore_index=IGNORE)
            (pull,) = torch.autograd.grad(loss, [kept[1]])
            x, pull = (each.unflatten(1, (layer.heads, -1)).flatten(0, 1).float() for each in (kept[0], pull))
            pulled = {grad: _pulled(layer, x, pull, grad) for grad in (*STRATEGIES, "bptt")}
    finally:
        handle.remove()
    reference = pulled.pop("bptt").flatten().double()
    if not 0 < float(reference.norm()) < math.inf:
        return {}
    made = {}
    for grad, value in pulled.items():
        flat = value.flatten().double()
        key = grad.replace(":", "").replace("-", "_")
        made[f"norm_{key}"] = float(flat.norm() / reference.norm())
        made[f"cosine_{key}"] = float(flat @ reference / (flat.norm() * reference.norm()).clamp_min(1e-300))
    return made


def _pulled(layer: HamLayer, x: Tensor, pull: Tensor, grad: str) -> Tensor:
    x = x.detach().requires_grad_()
    bases = layer.dictionary(x)
    out = run(x, layer.ham, steps=layer.eval_steps, grad=as_gradient(grad), bases=bases, backend="plain")
    return torch.autograd.grad(out.reconstruction, x, pull)[0]
