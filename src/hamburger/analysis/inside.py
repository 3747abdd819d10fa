"""What a trained context does to its feature map, and which way its gradients point: means over labelled images."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.analysis.atoms import ham_layers
from hamburger.analysis.hooks import evaluating, look
from hamburger.analysis.spectrum import cumulative_energy, effective_rank, rank_for
from hamburger.errors import InputError
from hamburger.layers.ham import HamLayer
from hamburger.solvers.decompose import run
from hamburger.solvers.grad import as_gradient

CONTEXT = "head.context"
SILENT = 0.01  # a channel below this share of the mean channel's size says nothing
IGNORE = 255
STRATEGIES = ("one-step", "truncated:1", "truncated:2")


def look_inside(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, layer: str = CONTEXT) -> dict[str, float]:
    """Means over images of what the named layer does (Figs. 5 and 6), and of gradients where it holds one ham.

    `batches` are (images b 3 h w as the network takes them, labels b h w). Keys: `rank_before`, `rank_after` (effective
    rank), `rank90_*` (singular values for 90 % of the energy), `silent_*` (share of channels that are next to zero);
    `cosine_*` and `norm_*` of each gradient of the ham, at the cotangent of the cross-entropy, to and over BPTT.
    """
    found: dict[str, list[float]] = {}
    names = [name for name in ham_layers(net) if name.startswith(layer)]
    for images, labels in batches:
        seen = look("look_inside", net, images, [layer])[layer]
        for end, maps in (("before", seen.before), ("after", seen.after)):
            shares = cumulative_energy(maps)
            found.setdefault(f"rank_{end}", []).extend(effective_rank(shares).tolist())
            found.setdefault(f"rank90_{end}", []).extend(rank_for(shares, 0.9).tolist())
            found.setdefault(f"silent_{end}", []).extend(silent(maps).tolist())
        if len(names) == 1:
            for key, value in gradients(net, images, labels, names[0]).items():
                found.setdefault(key, []).append(value)
    if not found:
        raise InputError("look_inside: there was no image to look at; give at least one batch")
    return {key: sum(values) / len(values) for key, values in found.items()}


def silent(maps: Tensor) -> Tensor:
    """Share of channels whose size is next to nothing beside that of the mean channel.   b c *spatial   ->   b"""
    size = maps.detach().double().flatten(2).square().mean(2).sqrt()
    return (size <= SILENT * size.mean(1, keepdim=True)).double().mean(1)


def gradients(net: nn.Module, images: Tensor, labels: Tensor, name: str) -> dict[str, float]:
    """Cosine to BPTT and norm over BPTT's, of dL/dX by each strategy; nothing where BPTT vanishes.   images: b 3 h w"""
    layer = net.get_submodule(name)
    assert isinstance(layer, HamLayer)
    if layer.axis != "spatial":
        return {}
    kept: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        kept.extend((args[0].detach(), out))

    handle = layer.register_forward_hook(keep)
    try:
        with evaluating(net), torch.enable_grad():
            loss = F.cross_entropy(net(images).float(), labels, ignore_index=IGNORE)
            (pull,) = torch.autograd.grad(loss, [kept[1]])
            x, pull = (each.unflatten(1, (layer.heads, -1)).flatten(0, 1).float() for each in (kept[0], pull))
            pulled = {grad: _pulled(layer, x, pull, grad) for grad in (*STRATEGIES, "bptt")}
    finally:
        handle.remove()
    reference = pulled.pop("bptt").flatten().double()
    if not reference.norm() > 0:
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
