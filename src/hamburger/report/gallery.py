"""Validation images next to the predictions of the trained networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.registry import options_of
from hamburger.report.figures import encode_image, is_photo, shrink
from hamburger.report.html import Markup, heading, legend, paragraph, tiles
from hamburger.report.study import RunGroup, RunRecord, Study
from hamburger.segmentation.predict import pick_device
from hamburger.training.task_outputs import Visualizer

SEED = 0  # for drawing the images
CANDIDATES = 32


@dataclass(frozen=True, eq=False)  # compared by identity
class GalleryNetwork:
    """One trained network on the device, for its group."""

    group: RunGroup
    run: RunRecord
    net: nn.Module
    info: Info


@dataclass(frozen=True)
class Gallery:
    """Trained networks and some validation images; `indices` are drawn with a fixed seed."""

    showing: Visualizer
    indices: tuple[int, ...]
    exhibits: tuple[GalleryNetwork, ...]  # the reference first, if it has weights
    device: torch.device

    def exhibit(self, group: RunGroup | None) -> GalleryNetwork | None:
        return next((exhibit for exhibit in self.exhibits if exhibit.group is group), None)

    def answers(self, exhibit: GalleryNetwork) -> dict[int, Any]:
        return {i: self.showing.answer(exhibit.net, exhibit.info, self.device, i) for i in self.indices}

    def inputs(self, exhibit: GalleryNetwork, count: int) -> dict[int, Tensor]:
        """Input tensors of the first `count` images; empty if the task has no single input tensor."""
        inputs = {i: self.showing.input(i, exhibit.info, self.device) for i in self.indices[:count]}
        return {i: x for i, x in inputs.items() if x is not None}


def open_gallery(study: Study, data_root: Path | None, *, device: str = "auto") -> Gallery | str:
    """The gallery, or the reason why there is none."""
    task = study.task
    visualizer = task.visualizer()
    if visualizer is None:
        return f"The task '{study.task.name}' has no images to show."
    exhibited = list(_choose(study))
    if not exhibited:
        return "No run has weights (best.safetensors) yet."
    recipe = exhibited[0][1].recipe["data"]
    name, split = recipe["name"], recipe.get("val_split", "val")
    if data_root is None and "root" in options_of(task.datasets()[name]):
        return f"The data set '{name}' is on disk and no folder was given (--data DIR)."
    on = pick_device(device)
    exhibits = []
    data: Any = None
    for group, run in exhibited:
        assert run.weights
        net, info = task.load(run.weights)
        if data is None:
            data = task.split(info, name, split, data_root, recipe.get("options") or {}, whole=False)
        task.fits(f"report: {run.weights}", info, data)
        exhibits.append(GalleryNetwork(group, run, net.to(on).eval(), info))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED)).tolist()
    return Gallery(visualizer(data), tuple(order[:CANDIDATES]), tuple(exhibits), on)


def _choose(study: Study) -> Iterator[tuple[RunGroup, RunRecord]]:
    """One run of each group on the reference's data: the lowest seed that all groups have, else the group's lowest."""
    groups = [group for group in study.groups if any(run.weights for run in group.runs)]
    groups = [group for group in groups if _data(group) == _data(groups[0])]
    seeds = [{run.seed for run in group.runs if run.weights} for group in groups]
    shared = sorted(set.intersection(*seeds)) if seeds else []
    for group in groups:
        having = [run for run in group.runs if run.weights]
        yield group, next((run for run in having if shared and run.seed == shared[0]), having[0])


def _data(group: RunGroup) -> tuple[object, ...]:
    data = group.runs[0].recipe["data"]
    return data.get("name"), data.get("options"), data.get("val_split")


# -- images and predictions, side by side ------------------------------------------------------------------------------


GalleryPredictions = dict[str, dict[int, Any]]  # by the name of the group, then by index


def render_predictions(study: Study, gallery: Gallery) -> Markup:
    """Some random images, some where the context gains most, some where it loses most."""
    showing = gallery.showing
    shown = _shown(study, gallery)
    answers = {exhibit.group.name: gallery.answers(exhibit) for exhibit in shown}
    parts = [heading(f"Random images (seed {SEED})"), _rows(gallery, answers, gallery.indices[: showing.each])]
    if len(shown) > 1:
        first, second = shown[0].group.name, shown[1].group.name
        gains = {i: showing.judge(i, answers[second][i]) - showing.judge(i, answers[first][i]) for i in gallery.indices}
        sign = 1 if showing.score.higher else -1
        ranked = sorted(gains, key=lambda i: (-sign * gains[i], i))
        for words, extremes in (
            (f"Where {second} gains most over {first}", [i for i in ranked[: showing.each] if sign * gains[i] > 0]),
            (
                f"Where {second} loses most to {first}",
                [i for i in ranked[: -showing.each - 1 : -1] if sign * gains[i] < 0],
            ),
        ):
            parts.append(heading(words))
            parts.append(_rows(gallery, answers, extremes, gains))
            if not extremes:
                parts.append(paragraph("None of the images.", kind="soft"))
    legends = "".join(legend(entries) for entries in showing.legends(gallery.indices))
    return Markup(paragraph(_caption(gallery, shown)) + legends + "".join(parts))


def _shown(study: Study, gallery: Gallery) -> list[GalleryNetwork]:
    """The reference, the best ham and the best rival that have weights; at least one network."""
    wanted = [study.reference, study.best("ham"), study.best("rival") or study.best("breads")]
    networks = [exhibit for group in wanted if group is not None and (exhibit := gallery.exhibit(group))]
    return list(dict.fromkeys(networks)) or list(gallery.exhibits[:1])


def _caption(gallery: Gallery, shown: Sequence[GalleryNetwork]) -> str:
    showing = gallery.showing
    names = ", ".join(f"{exhibit.group.name} (seed {exhibit.run.seed})" for exhibit in shown)
    return (
        f"{len(gallery.indices)} images of the {showing.split.split} split of {showing.split.name}, drawn with a fixed "
        f"seed, predicted by {names}: best weights of each run, {showing.images}. Gains and losses are in "
        f"{showing.score.words}; they are the extremes of these images, not typical ones."
    )


def _rows(
    gallery: Gallery, answers: GalleryPredictions, indices: Sequence[int], gains: dict[int, float] | None = None
) -> Markup:
    """A row of tiles for each image; if every image has one tile, all of them in one row."""
    showing = gallery.showing
    rows = []
    for index in indices:
        gain = "" if gains is None else f", {showing.score.signed(gains[index])} {showing.score.points}"
        first, *others = showing.row(index, {name: predictions[index] for name, predictions in answers.items()}, gain)
        photo = is_photo(first.pixels)
        entries = [(encode_image(shrink(first.pixels), photo=photo), first.words)]
        entries += [
            (encode_image(shrink(each.pixels, labels=each.drawn), photo=photo and not each.drawn), each.words)
            for each in others
        ]
        rows.append((entries, photo))
    if all(len(entries) == 1 for entries, _ in rows):
        return tiles([entries[0] for entries, _ in rows], large=any(photo for _, photo in rows)) if rows else Markup()
    return Markup("".join(tiles(entries, large=photo) for entries, photo in rows))
