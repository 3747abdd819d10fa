"""Feature maps before and after the context (Fig. 6) and atoms of the ham, as a JSON file that the page shows.

Channels and atoms are chosen by rules, not by eye. Photographs are not copied into the file, only their maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamburger.environment import describe_environment
from hamburger.errors import DataError, OptionError
from hamburger.inference.find_weights import find_weights
from hamburger.inspect.activations import record_activations
from hamburger.inspect.solves import code_maps, list_ham_layers
from hamburger.registry import options_of
from hamburger.report.html import Markup, colourise, encode_image, heading, paragraph, shrink, tiles
from hamburger.segmentation.data import datasets
from hamburger.tasks.evaluate import open_evaluation
from hamburger.training.image_files import normalise
from hamburger_lab.ablations.context_statistics import CONTEXT

SEED = 0  # seed that chooses the images
IMAGES, CHANNELS, ATOMS = 2, 6, 6
FeatureMapStudy = dict[str, Any]


def make_feature_maps(runs: Sequence[Path], data: Path | None = None, *, images: int = IMAGES) -> FeatureMapStudy:
    """Return one entry per network and validation image, ready for JSON."""
    entries: list[dict[str, Any]] = []
    name = ""
    for run in runs:
        opened = open_evaluation(find_weights(run), data=data, device="cpu")
        net, info, name, split = opened.net, opened.info, opened.data, opened.images
        if opened.task.name != "segmentation" or CONTEXT not in dict(net.named_modules()):
            raise OptionError(f"feature-maps: the network of {run} has no context; leave it out")
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(SEED)).tolist()
        for index in order[:images]:
            sample = split[index]
            x = normalise(sample.image, info.mean, info.std)[None]
            entry = {"run": run.name, "image": split.ids[index], "pixels": None, "channels": [], "atoms": []}
            if "root" not in options_of(datasets[name]):
                entry["pixels"] = encode_image(shrink(sample.image))
            activations = record_activations("feature-maps", net, x, [CONTEXT])[CONTEXT]
            entry["channels"] = channel_entries(activations.before[0], activations.after[0])
            if len(list_ham_layers(net)) == 1:
                entry["atoms"] = atom_entries(net, x)
            entries.append(entry)
    return {"data": name, "environment": describe_environment("cpu"), "entries": entries}


def channel_entries(before: Tensor, after: Tensor) -> list[dict[str, Any]]:
    """Return channels evenly spaced in the order of their energy before the context.   c h w, c h w"""
    order = before.square().sum((1, 2)).argsort(descending=True, stable=True)
    places = torch.linspace(0, len(order) - 1, min(CHANNELS, len(order))).round().long()
    entries = []
    for at, channel in zip(places.tolist(), order[places].tolist(), strict=True):
        pair = before[channel], after[channel]
        sizes = [float(one.square().mean().sqrt()) for one in pair]
        entries.append({"place": at + 1, "of": len(order), "sizes": sizes, "maps": _render_maps(*pair)})
    return entries


def atom_entries(net: torch.nn.Module, x: Tensor) -> list[dict[str, Any]]:
    """Return the strongest atoms, each with its share of the energy."""
    codes = code_maps(net, x)
    maps, energies = codes.maps[0].flatten(0, 1), codes.energies[0].flatten()
    energies, order = energies.sort(descending=True, stable=True)
    shares = energies / energies.sum().clamp_min(1e-12)
    return [{"share": float(shares[i]), "map": _render_maps(maps[order[i]])} for i in range(min(ATOMS, len(order)))]


def _render_maps(*maps: Tensor) -> str:
    """Return the maps side by side as one image, each in its own scale.   h w each"""
    parts: list[Tensor] = []
    for values in (one.detach().float() for one in maps):
        parts += [torch.ones(3, values.shape[0], 1)] * bool(parts)
        parts.append(shrink(colourise(values, signed=bool((values < 0).any()))))
    return encode_image((255 * torch.cat(parts, dim=2)).round().to(torch.uint8))


def feature_maps_html(name: str, study: FeatureMapStudy) -> Markup:
    """Return the images of one file as HTML; raise on a file that somebody else wrote, or that names files to load."""
    try:
        return _show_study(study)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise DataError(
            f"claims: {name}.json was not written by `ham feature-maps`; write it again, or remove it"
        ) from None


def _show_tiles(entries: Sequence[tuple[str, str]]) -> Markup:
    if not all(uri.startswith("data:image/") for uri, _ in entries):
        raise ValueError("an image outside the file")
    return tiles(entries)


def _show_study(study: FeatureMapStudy) -> Markup:
    first = study["entries"][0]["channels"][0]["of"]
    parts = [
        heading(f"Feature maps and atoms: {study['data']}"),
        paragraph(
            f"Images are drawn at random (seed {SEED}). Of {first} channels those are shown that are evenly spaced in "
            "the order of their energy before the context, the strongest first: left before, right after the context, "
            "with the size (root mean square) of both. Each map is scaled to its own largest value, so a silenced "
            "channel keeps its pattern and loses its size. Atoms are rows of C, strongest first, with their "
            "share of the energy. Where values have signs, orange is above zero, purple below."
        ),
    ]
    for entry in study["entries"]:
        parts.append(heading(f"{entry['run']}, image {entry['image']}"))
        sizes = ["before {:.2g}, after {:.2g}".format(*one["sizes"]) for one in entry["channels"]]
        maps = [(one["maps"], f"{one['place']}: {size}") for one, size in zip(entry["channels"], sizes, strict=True)]
        parts.append(_show_tiles(maps))
        row = [(entry["pixels"], "the image")] if entry["pixels"] else []
        row += [(one["map"], f"atom: {100 * one['share']:.1f} %") for one in entry["atoms"]]
        parts.append(_show_tiles(row) if row else Markup())
    return Markup("".join(parts))
