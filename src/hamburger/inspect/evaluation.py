"""What `ham eval` does: scores of trained weights on a split, and a look inside the network.

`evaluate_weights`: a row of scores for each setting of the solver.
`measure_context`: rank, silent channels and gradient directions of its context, as means over labelled images.
`solver_variants`: the same network with other step counts or other dictionaries; no weight changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.environment import describe_environment
from hamburger.errors import InputError, OptionError, check_count, check_seed
from hamburger.hams import as_gradient
from hamburger.hams.decompose import run
from hamburger.inspect.activations import (
    attention_layers,
    attention_maps,
    cumulative_energy,
    effective_rank,
    numerical_rank,
    rank_for,
    record_activations,
)
from hamburger.inspect.solves import fold_heads, list_ham_layers, output_gradient, prepare_solve
from hamburger.layers.ham import Dictionary, HamLayer
from hamburger.tasks import task_of_weights
from hamburger.training.accelerator import pick_device
from hamburger.training.image_files import normalise
from hamburger.training.task import SINGLE_SCALE, EvaluationProtocol

CONTEXT = "head.context"
SILENT = 0.01  # a channel is silent below this fraction of the mean channel's RMS
IGNORE = 255
STRATEGIES = ("one-step", "truncated:1", "truncated:2")
# stored spectra hold the energy in so many of the largest singular values
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
Measurements = dict[str, float | list[float]]


def measure_context(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, layer: str = CONTEXT) -> Measurements:
    """Statistics of the named layer (Figs. 5 and 6), and of the gradients of its ham if it contains one; image means.

    `batches` yields (images b 3 h w as the network takes them, labels b h w). Returned keys:

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
            for key, value in compare_gradients(net, images, labels, ham_name).items():
                add(key, torch.tensor([value]))
    if not values_of:
        raise InputError("measure_context: no images; give at least one batch")
    means = {key: torch.stack(values).mean(0).tolist() for key, values in values_of.items()}
    return {key: [round(x, 6) for x in mean] if isinstance(mean, list) else mean for key, mean in means.items()}


def evaluate_weights(
    path: Path,
    *,
    data: Path | None = None,
    dataset: str | None = None,
    split: str = "val",
    options: Mapping[str, Any] | None = None,
    protocol: EvaluationProtocol = SINGLE_SCALE,
    steps: Sequence[int | None] = (None,),
    draws: Sequence[int | None] = (None,),
    inside: int = 0,
    device: str = "auto",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[list[dict[str, Any]], Measurements]:
    """Evaluate a weights file for its task: a row for each of `steps` and `draws`, and what `inside` images measure.

    `dataset` and `options` default to those of the training; "val" is the split that the run was validated on.
    """
    check_count("eval", "inside", inside, least=0)
    task = task_of_weights(path)
    if not task.test_time_augmentation and (protocol != SINGLE_SCALE or inside):
        raise OptionError(
            f"eval: {path} is for the task '{task.name}', which evaluates each image once, as it is; leave out "
            "scales, flip, window and inside"
        )
    on = pick_device(device)
    net, info = task.load(path)
    variants = solver_variants(net.to(on), steps=steps, draws=draws)
    about, chosen = info.extra, dict(options or {})
    name = dataset or about.get("data")
    if name is None:
        raise OptionError(f"eval: {path} does not name the data set it was trained on; name one with --dataset")
    name = task.dataset_for(name, data)
    split = about.get("val_split", split) if split == "val" else split
    trained = about.get("data_options", {}) if name == about.get("data") else {}
    images = task.split(info, name, split, data, trained | chosen)
    task.check_fits("eval", info, images)
    start = time.perf_counter()
    results = task.evaluate_variants(net, images, info, variants, device=on, protocol=protocol, progress=progress)
    measured = _measure_inside(net, images, info, inside, on) if inside else {}
    seconds = round((time.perf_counter() - start) / len(results), 2)
    shared: dict[str, Any] = {key: about[key] for key in ("recipe", "seed", "context", "step") if key in about}
    rows = []
    for (count, seed), scores in zip(product(steps, draws), results, strict=True):
        row = {"weights": str(path), "task": task.name, "data": name, "split": split, **asdict(scores), **measured}
        row |= {**shared, "options": chosen, "eval_steps": count, "draws": seed, "seconds": seconds}
        rows.append({**row, **describe_environment(on.type)})
    return rows, measured


def _measure_inside(net: Any, images: Any, info: Info, count: int, device: torch.device) -> Measurements:
    if getattr(net.head, "context", None) is None:
        raise OptionError(f"eval: --inside needs the layer '{CONTEXT}', which this network does not have; leave it out")
    samples = (images[index] for index in range(min(count, len(images))))
    batches = ((normalise(x.to(device), info.mean, info.std)[None], y.long()[None].to(device)) for x, y in samples)
    return measure_context(net, batches)


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
    cotangent = fold_heads(layer, cotangent).float()
    gradients = {grad: _input_gradient(layer, x, bases, cotangent, grad) for grad in (*STRATEGIES, "bptt")}
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


def _input_gradient(layer: HamLayer, x: Tensor, bases: Tensor, cotangent: Tensor, grad: str) -> Tensor:
    """dL/dX of the ham by one gradient strategy."""
    x = x.detach().requires_grad_()
    out = run(x, layer.ham, steps=layer.eval_steps, grad=as_gradient(grad), bases=bases, backend="plain")
    return torch.autograd.grad(out.reconstruction, x, cotangent)[0]


# -- other solver settings ---------------------------------------------------------------------------------------------


class RedrawnDictionary(nn.Module):
    """First bases drawn anew for every sample, in evaluation too, as in the authors' code.   (b s) d n -> (b s) d r

    It has its own generator: the same images in the same order get the same draws on every device.
    """

    init, heads = "random", 1

    def __init__(self, layer: HamLayer, seed: int) -> None:
        super().__init__()
        self.ham = layer.ham
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        like = x.new_empty(0, dtype=torch.float32)
        return self.ham.draw(x.shape[0], x.shape[1], like=like, generator=self.generator)

    def update(self, bases: Tensor) -> None:
        """Do nothing: drawn bases are not updated."""


def solver_variants(
    net: nn.Module, *, steps: Sequence[int | None] = (None,), draws: Sequence[int | None] = (None,)
) -> list[Callable[[], None]]:
    """Functions that switch the hams of `net` to each combination of step counts and seeds of drawn dictionaries.

    None leaves a setting as trained. Each function keeps the state of its draws. A network without a ham is an error.
    """
    layers = list(list_ham_layers(net).values())
    step_counts, seeds = ([value for value in values if value is not None] for values in (steps, draws))
    if not layers and (step_counts or seeds):
        raise OptionError("eval: --steps and --draws need a ham, and this network has none; leave them out")
    for count in step_counts:
        check_count("eval", "steps", count, least=0)
    for drawn in seeds:
        check_seed("eval", drawn)
    if seeds and not all(isinstance(layer.dictionary, (Dictionary, RedrawnDictionary)) for layer in layers):
        raise OptionError(
            "eval: --draws needs a spatial ham; the dictionary of a channel ham has one row per position and cannot be "
            "redrawn"
        )

    def variant(step_count: int | None, seed: int | None) -> Callable[[], None]:
        counts = [layer.eval_steps if step_count is None else step_count for layer in layers]
        dictionaries: list[Any] = [layer.dictionary for layer in layers]
        if seed is not None:
            dictionaries = [RedrawnDictionary(layer, seed + index) for index, layer in enumerate(layers)]

        def switch() -> None:
            for layer, count, dictionary in zip(layers, counts, dictionaries, strict=True):
                layer.eval_steps, layer.dictionary = count, dictionary

        return switch

    return [variant(*settings) for settings in product(steps, draws)]
