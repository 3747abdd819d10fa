"""Rank, silent channels and gradient directions of a context in a trained network, as means over labelled images."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import InputError
from hamburger.hams import NMF, Ham, as_gradient
from hamburger.hams.decompose import solve_ham
from hamburger.inspect.activations import (
    attention_layers,
    attention_maps,
    cumulative_energy,
    effective_rank,
    rank_for,
    record_activations,
)
from hamburger.inspect.solves import list_ham_layers, output_gradient, prepare_solve
from hamburger.layers.ham import HamLayer
from hamburger_lab.bench import authors_reference

CONTEXT = "head.context"
SILENT = 0.01  # a channel is silent below this fraction of the mean channel's RMS
IGNORE = 255
AUTHORS_SEED = 0  # of the dictionary of the authors' NMF
STRATEGIES = ("one-step", "truncated:1", "truncated:2")
# stored spectra hold the energy in so many of the largest singular values
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
Measurements = dict[str, float | list[float]]


def measure_context(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, layer: str = CONTEXT) -> Measurements:
    """Statistics of the named layer (Figs. 5 and 6), and of the gradients of its ham if it contains one; image means.

    `batches` yields (images b 3 h w as the network takes them, labels b h w). Returned keys:

    - `rank_authors`: effective rank of D C by the authors' NMF on the same X, from a random dictionary of its own;
    - `rank_*` (effective rank), `rank90_*` (singular values for 90 % of the energy), `numerical_*` (singular values
      that float32 can tell from zero) and `spectrum_*` (shares of energy in the COUNTS largest), each for the layer's
      input (`before`), its output (`after`), the ham's output D C (`ham`), the n x n attention matrix of each head
      (`attention`) and that matrix minus its mean row (`centred`);
    - `silent_*`: share of channels that are nearly zero;
    - `common_attention`: share of the matrix's energy in its mean row; attention without any focus has all of it there,
      and rank 1;
    - `bound` (the ham's r), `positions` (n), `channels`;
    - `cosine_*`, `norm_*`: direction and length of each gradient of the ham relative to BPTT, for the cross-entropy.
    """
    values_of: dict[str, list[Tensor]] = {}

    def add(key: str, values: Tensor) -> None:  # one entry or one row per image
        values_of.setdefault(key, []).extend(values.double().cpu())

    hams = {name: module for name, module in list_ham_layers(net).items() if name.startswith(layer)}
    ham_name = next(iter(hams)) if len(hams) == 1 else None
    recorded = [layer] if ham_name is None else [layer, ham_name]
    attentions = [name for name in attention_layers(net) if name.startswith(layer)]
    for images, labels in batches:
        activations = record_activations("measure_context", net, images, recorded)
        matrices = {"before": activations[layer].before, "after": activations[layer].after}
        for end in ("before", "after"):
            add(f"silent_{end}", silent_share(matrices[end]))
        if ham_name is not None:
            matrices["ham"] = activations[ham_name].after
        if len(attentions) == 1:
            maps = attention_maps(net, images, layer).flatten(0, 1).double()
            matrices |= {"attention": maps, "centred": maps - maps.mean(1, keepdim=True)}
            add("common_attention", 1 - matrices["centred"].square().sum((1, 2)) / maps.square().sum((1, 2)))
        for part, matrix in matrices.items():
            shares = cumulative_energy(matrix)
            add(f"rank_{part}", effective_rank(shares))
            add(f"rank90_{part}", rank_for(shares, 0.9))
            add(f"numerical_{part}", numerical_rank(shares, max(matrix.flatten(2).shape[1:])))
            add(f"spectrum_{part}", shares[:, [min(count, shares.shape[1]) - 1 for count in COUNTS]])
        for key, size in zip(("channels", "positions"), matrices["before"].flatten(2).shape[1:], strict=True):
            add(key, torch.full((len(images),), float(size)))
        if ham_name is not None:
            add("bound", torch.full((len(images),), float(hams[ham_name].ham.rank)))
            if type(hams[ham_name].ham) is NMF:
                add("rank_authors", authors_rank(hams[ham_name], activations[ham_name].before))
            for key, value in compare_gradients(net, images, labels, ham_name).items():
                add(key, torch.tensor([value]))
    if not values_of:
        raise InputError("measure_context: no images; give at least one batch")
    means = {key: torch.stack(values).mean(0).tolist() for key, values in values_of.items()}
    return {key: [round(x, 6) for x in mean] if isinstance(mean, list) else mean for key, mean in means.items()}


def numerical_rank(shares: Tensor, size: int) -> Tensor:
    """The number of singular values above `size` * float32 epsilon * the largest, as numpy and torch count.   b m -> b

    `size` is the larger of the numbers of rows and columns.
    """
    parts = shares.diff(dim=1, prepend=shares.new_zeros(len(shares), 1))
    return (parts > (size * torch.finfo(torch.float32).eps) ** 2 * parts[:, :1]).sum(1)


def authors_rank(layer: HamLayer, x: Tensor) -> Tensor:
    """Effective rank of what the authors' NMF makes of the input of an NMF layer.   b d *spatial   ->   b"""
    data, _ = prepare_solve(layer, x.float())
    generator = torch.Generator().manual_seed(AUTHORS_SEED)
    bases = torch.rand(len(data), data.shape[1], layer.ham.rank, generator=generator)
    solution = authors_reference.nmf(data, F.normalize(bases, dim=1).to(data), layer.eval_steps)
    return effective_rank(cumulative_energy(solution.reconstruction))


def silent_share(maps: Tensor) -> Tensor:
    """Share of channels whose RMS is below SILENT times the mean channel's.   b c *spatial   ->   b"""
    size = maps.detach().double().flatten(2).square().mean(2).sqrt()
    return (size <= SILENT * size.mean(1, keepdim=True)).double().mean(1)


def compare_gradients(net: nn.Module, images: Tensor, labels: Tensor, name: str) -> dict[str, float]:
    """Cosine with BPTT, and norm relative to BPTT, of dL/dX by each strategy.   images: b 3 h w

    Empty if BPTT vanishes or is not finite: a NaN would spoil the mean over images.
    """
    layer = net.get_submodule(name)
    assert isinstance(layer, HamLayer)
    if layer.axis != "spatial":
        return {}
    before = record_activations("compare_gradients", net, images, [name])[name].before
    x, bases = prepare_solve(layer, before.float())
    cotangent = output_gradient(
        net, images, lambda logits: F.cross_entropy(logits.float(), labels, ignore_index=IGNORE), layer
    )
    if cotangent is None:
        return {}
    cotangent = layer.fold(cotangent).float()
    ham, steps = layer.bind_ham(before.shape[2:]), layer.eval_steps
    gradients = {grad: _input_gradient(ham, steps, x, bases, cotangent, grad) for grad in (*STRATEGIES, "bptt")}
    reference = gradients.pop("bptt").flatten().double()
    if not 0 < float(reference.norm()) < math.inf:
        return {}
    measured = {}
    for grad, value in gradients.items():
        flat = value.flatten().double()
        key = grad.replace(":", "").replace("-", "_")
        measured[f"norm_{key}"] = float(flat.norm() / reference.norm())
        measured[f"cosine_{key}"] = float(flat @ reference / (flat.norm() * reference.norm()).clamp_min(1e-300))
    return measured


def _input_gradient(ham: Ham, steps: int, x: Tensor, bases: Tensor, cotangent: Tensor, grad: str) -> Tensor:
    """dL/dX of the ham by one gradient strategy."""
    x = x.detach().requires_grad_()
    out = solve_ham(x, ham, steps=steps, grad=as_gradient(grad), bases=bases, backend="plain")
    return torch.autograd.grad(out.reconstruction, x, cotangent)[0]
