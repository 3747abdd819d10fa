"""The trained networks of a study and the validation images they are shown, both chosen by stated rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hamburger.analysis.report.groups import Group, Study
from hamburger.analysis.report.runs import Run, RunError
from hamburger.data import IGNORE, Sample, SegmentationSet, create_dataset, datasets
from hamburger.data.normalise import normalise
from hamburger.recipes.kinds import SEGMENTATION
from hamburger.registry import options_of
from hamburger.use.predict import Predictor

SEED = 0  # of the draw of images
CANDIDATES = 32


@dataclass(frozen=True, eq=False)  # each is itself
class Exhibit:
    """One trained network, under the name of its group."""

    group: Group
    run: Run
    predictor: Predictor

    def input(self, sample: Sample) -> Tensor:
        """What the network takes.   ->   1 3 h w"""
        return normalise(sample.image.to(self.predictor.device), self.predictor.info.mean, self.predictor.info.std)[
            None
        ]


@dataclass(frozen=True)
class Gallery:
    """`samples` are drawn from the validation split by a fixed seed: by index, in the order of the draw."""

    data: SegmentationSet
    samples: dict[int, Sample]
    exhibits: tuple[Exhibit, ...]  # the reference first, where it has weights

    def exhibit(self, group: Group | None) -> Exhibit | None:
        return next((exhibit for exhibit in self.exhibits if exhibit.group is group), None)


def open_gallery(study: Study, data_root: Path | None, *, device: str = "auto") -> Gallery | str:
    """The gallery, or the reason why there is none."""
    if study.kind is not SEGMENTATION:
        return "They are drawn for segmentation networks only."
    exhibited = list(_choose(study))
    if not exhibited:
        return "No run has weights (best.safetensors) yet."
    recipe = exhibited[0][1].recipe["data"]
    name, split = recipe["name"], recipe.get("val_split", "val")
    if data_root is None and "root" in options_of(datasets[name]):
        return f"They need the images: the data set '{name}' lies in files, and no folder was given (--data DIR)."
    data = create_dataset(name, split, data_root, **(recipe.get("options") or {}))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED)).tolist()
    exhibits = tuple(Exhibit(group, run, _load(run, data, device)) for group, run in exhibited)
    return Gallery(data, {i: data[i] for i in order[:CANDIDATES]}, exhibits)


def accuracy(prediction: Tensor, label: Tensor) -> float:
    """Share of the labelled pixels that are right; 1 where none is labelled, for then none is wrong."""
    labelled = label != IGNORE
    right = (prediction == label) & labelled
    return float(right.sum() / labelled.sum()) if labelled.any() else 1.0


def _choose(study: Study) -> Iterator[tuple[Group, Run]]:
    """A run of each group on the reference's data: with the lowest seed that all of them have, else with its lowest."""
    groups = [group for group in study.groups if any(run.weights for run in group.runs)]
    groups = [group for group in groups if _data(group) == _data(groups[0])]
    seeds = [{run.seed for run in group.runs if run.weights} for group in groups]
    shared = sorted(set.intersection(*seeds)) if seeds else []
    for group in groups:
        having = [run for run in group.runs if run.weights]
        yield group, next((run for run in having if shared and run.seed == shared[0]), having[0])


def _data(group: Group) -> tuple[object, ...]:
    data = group.runs[0].recipe["data"]
    return data.get("name"), data.get("options"), data.get("val_split")


def _load(run: Run, data: SegmentationSet, device: str) -> Predictor:
    from hamburger.models.weights import load_weights

    assert run.weights
    net, info = load_weights(run.weights)
    if len(info.classes) != len(data.classes):
        raise RunError(
            f"report: {run.weights} knows {len(info.classes)} classes but the data set '{data.name}' has "
            f"{len(data.classes)}; give the data that the run was trained on"
        )
    return Predictor(net, info, device)
