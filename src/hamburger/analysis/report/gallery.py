"""The trained networks of a study and the validation images they are shown, both chosen by stated rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.analysis.report.groups import Group, Study
from hamburger.analysis.report.runs import Run
from hamburger.engine.showing import Showing
from hamburger.models.info import Info
from hamburger.registry import options_of
from hamburger.tasks import tasks
from hamburger.use.predict import pick_device

SEED = 0  # of the draw of images
CANDIDATES = 32


@dataclass(frozen=True, eq=False)  # each is itself
class Exhibit:
    """One trained network on the device, under the name of its group."""

    group: Group
    run: Run
    net: nn.Module
    info: Info


@dataclass(frozen=True)
class Gallery:
    """`indices` are drawn from the validation split by a fixed seed."""

    showing: Showing
    indices: tuple[int, ...]
    exhibits: tuple[Exhibit, ...]  # the reference first, where it has weights
    device: torch.device

    def exhibit(self, group: Group | None) -> Exhibit | None:
        return next((exhibit for exhibit in self.exhibits if exhibit.group is group), None)

    def answers(self, exhibit: Exhibit) -> dict[int, Any]:
        return {i: self.showing.answer(exhibit.net, exhibit.info, self.device, i) for i in self.indices}

    def inputs(self, exhibit: Exhibit, count: int) -> dict[int, Tensor]:
        """What the network takes of the first images; nothing where the task has no such tensor."""
        found = {i: self.showing.input(i, exhibit.info, self.device) for i in self.indices[:count]}
        return {i: x for i, x in found.items() if x is not None}


def open_gallery(study: Study, data_root: Path | None, *, device: str = "auto") -> Gallery | str:
    """The gallery, or the reason why there is none."""
    task = tasks[study.kind.task]
    if task.showing is None:
        return f"The task '{study.kind.task}' has no pictures to show."
    exhibited = list(_choose(study))
    if not exhibited:
        return "No run has weights (best.safetensors) yet."
    recipe = exhibited[0][1].recipe["data"]
    name, split = recipe["name"], recipe.get("val_split", "val")
    if data_root is None and "root" in options_of(task.sets[name]):
        return f"They need the images: the data set '{name}' lies in files, and no folder was given (--data DIR)."
    on = pick_device(device)
    exhibits = []
    data: Any = None
    for group, run in exhibited:
        assert run.weights
        net, info = task.load(run.weights)
        if data is None:
            data = task.split(info, name, split, data_root, recipe.get("options") or {}, whole=False)
        task.fits(f"report: {run.weights}", info, data)
        exhibits.append(Exhibit(group, run, net.to(on).eval(), info))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED)).tolist()
    return Gallery(task.showing(data), tuple(order[:CANDIDATES]), tuple(exhibits), on)


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
