"""What a segmentation network computes for one image: labels, and the atoms and spectra of its ham."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.hams.base import COLUMNS
from hamburger.inference.find_weights import find_weights
from hamburger.inspect.activations import Spectrum, cumulative_energy, record_activations
from hamburger.inspect.solves import CodeMaps, list_ham_layers, map_size, outer_modules, sort_atoms
from hamburger.layers.ham import HamLayer
from hamburger.segmentation.predict import Predictor, measure_class_shares, resize_labels
from hamburger.tasks import task_of_weights
from hamburger.training.image_files import Colour, full_palette, normalise
from hamburger.training.supervised import check_prediction

MAX_SIDE = 1024  # the longer side of an image; larger ones are reduced
HEAT = ((213, 94, 0), (255, 225, 120))  # of a weak and of the strongest part of an atom


@dataclass(frozen=True)
class Model:
    """A network with the metadata of its weights file; `layer` names the ham to explain, "" where there is none."""

    path: Path
    task: Any
    net: nn.Module
    info: Info
    device: torch.device
    layer: str

    @classmethod
    def open(cls, name: str | os.PathLike[str], device: torch.device) -> Model:
        """The model of a run folder, a weights file or a shipped name."""
        path = find_weights(name)
        task = task_of_weights(path)
        net, info = task.load(path)
        hams = [layer for layer, ham in list_ham_layers(net).items() if ham.axis == "spatial"]
        # the last ham is the nearest to the prediction
        return cls(path, task, net.to(device).eval(), info, device, hams[-1] if hams else "")

    @property
    def ham(self) -> HamLayer | None:
        return list_ham_layers(self.net).get(self.layer)

    @property
    def palette(self) -> list[Colour]:
        return full_palette(self.info.palette, len(self.info.classes))


class Solve(NamedTuple):
    """The ham's solution for one image; atoms are sorted by falling energy, over all heads."""

    maps: Tensor  # r h w, the norm of each atom's part of D C at each position
    shares: Tensor  # r, of the energy
    error: float  # |X - D C| / |X|
    before: Tensor  # 3 h w, uint8: X along its three principal directions
    after: Tensor  # 3 h w, uint8: D C along the same directions
    spectrum: Spectrum
    codes: CodeMaps


class Explanation(NamedTuple):
    """The labels of one image, and the solve of the network's ham."""

    image: Tensor  # 3 h w, uint8
    label: Tensor  # h w, uint8
    shares: dict[str, float]  # of the pixels, for each class that is present
    solve: Solve | None


def explain(model: Model, image: Tensor, *, steps: int | None = None, rank: int | None = None) -> Explanation:
    """Run the network once, with other steps and another rank of its ham if given.   image: 3 h w, uint8"""
    side = min(model.info.side or 0, MAX_SIDE)  # the network sees the image as a whole
    size = Predictor(model.net, model.info, model.device, side=side).input_size(*image.shape[1:])
    x = normalise(_resize(image, size).to(model.device), model.info.mean, model.info.std)[None]
    ham = model.ham
    layers, outer = ([model.layer], outer_modules(model.layer)) if ham else ([], [""])
    changed = ham and change_ham(ham, ham.eval_steps if steps is None else steps, rank or ham.ham.rank)
    with ham.register_forward_hook(lambda _, args, __: changed(*args)) if ham and changed else nullcontext():
        seen = record_activations("explain", model.net, x, layers, optional=outer)
    solve = _describe_solve(changed, *seen[model.layer], map_size(model.layer, seen)) if changed else None
    label = resize_labels(check_prediction("logits", seen[""].after[0].cpu()), *image.shape[1:]).to(torch.uint8)
    return Explanation(image, label, measure_class_shares(label, model.info.classes), solve)


def shrink(image: Tensor, side: int = MAX_SIDE) -> Tensor:
    """The image, reduced where its longer side is above `side`.   3 h w, uint8"""
    factor = side / max(image.shape[1:])
    return image if factor >= 1 else _resize(image, [max(1, round(n * factor)) for n in image.shape[1:]])


def _resize(image: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(image[None], size=tuple(size), mode="bilinear", antialias=True)[0]


def draw_heat(image: Tensor, values: Tensor) -> Tensor:
    """A map in colour over the image in dark grey, on its own scale.   3 h w uint8, h' w'   ->   3 h w uint8"""
    grey = image.float().mean(0, keepdim=True).expand(3, -1, -1) * 0.6
    heat = F.interpolate(values[None, None], image.shape[1:], mode="bilinear", align_corners=True)[0, 0]
    heat = heat / heat.max().clamp_min(1e-12)
    weak, strong = (torch.tensor(colour, dtype=torch.float32)[:, None, None] for colour in HEAT)
    return torch.lerp(grey, torch.lerp(weak, strong, heat), heat**1.5).round().to(torch.uint8)


def change_ham(ham: HamLayer, steps: int, rank: int) -> HamLayer:
    """A copy that solves in so many steps from the first `rank` bases; those that are missing are drawn by seed 0.

    With `init="columns"` it starts from `rank` columns of its input.
    """
    changed = copy.deepcopy(ham)
    changed.ham, changed.eval_steps = replace(ham.ham, rank=rank), steps
    if ham.dictionary.init != COLUMNS:
        bases: Tensor = ham.dictionary.bases.data  # type: ignore[assignment]
        # of the new rank, since a smaller one might not fit the ham's other options
        drawn = changed.ham.draw(*bases.shape[:2], like=bases, generator=torch.Generator().manual_seed(0))
        changed.dictionary.bases.data = torch.cat([bases, drawn], 2)[:, :, :rank]
    return changed


def _describe_solve(ham: HamLayer, before: Tensor, after: Tensor, size: tuple[int, int]) -> Solve:
    codes = sort_atoms(ham, before, size)
    energies, order = codes.energies.flatten().sort(descending=True, stable=True)
    maps = (codes.maps.abs() * codes.bases.norm(dim=2)[..., None, None]).flatten(0, 2)[order]
    error = float((before - after).norm() / before.norm().clamp_min(1e-12))
    first, second = _colour_features(before[0].flatten(1), after[0].flatten(1), size)
    spectrum = Spectrum(cumulative_energy(before).cpu(), cumulative_energy(after).cpu())
    return Solve(maps.cpu(), (energies / energies.sum()).cpu(), error, first, second, spectrum, codes)


def _colour_features(before: Tensor, after: Tensor, size: tuple[int, int]) -> list[Tensor]:
    """Both maps along the three principal directions of the first.   d n, d n   ->   3 h w, 3 h w, uint8"""
    centre = before.mean(1, keepdim=True)
    directions = torch.linalg.eigh((before - centre) @ (before - centre).mT).eigenvectors[:, -3:].flip(1)
    first, second = (directions.mT @ (each - centre) for each in (before, after))
    low, high = (first.quantile(q, dim=1, keepdim=True) for q in (0.02, 0.98))
    scaled = [((each - low) / (high - low).clamp_min(1e-12)).clamp(0, 1) for each in (first, second)]
    return [(255 * each).round().to(torch.uint8).unflatten(1, size).cpu() for each in scaled]


def find_atom(solve: Solve, x: float, y: float) -> tuple[int, float]:
    """The atom with the largest part at a point (0 ... 1 from the left and the top), and its share there."""
    h, w = solve.maps.shape[1:]
    parts = solve.maps[:, min(int(y * h), h - 1), min(int(x * w), w - 1)]
    return int(parts.argmax()), float(parts.max() / parts.sum().clamp_min(1e-12))
