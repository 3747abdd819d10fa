"""Stereo pairs: left image, true disparity, and of each network its disparity and how far it is off."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hamburger.analysis.report.drawing import is_photo, picture, shrink
from hamburger.analysis.report.gallery import draw_lot
from hamburger.analysis.report.groups import Study
from hamburger.analysis.report.html import Markup, legend, paragraph, tiles
from hamburger.data.stereo import UNKNOWN, StereoSample, StereoSet, stereo_sets
from hamburger.metrics.disparity import DisparityErrors, mean_errors
from hamburger.models.stereo import load_stereo
from hamburger.use.disparity import disparity_of
from hamburger.use.disparity_pictures import UNKNOWN_COLOUR, coloured
from hamburger.use.predict import pick_device

SHOWN = 4  # pairs
NETWORKS = 4
BOUNDS = (1.0, 3.0)
FINE, OFF, WRONG = (222, 222, 216), (230, 159, 0), (213, 94, 0)


def disparity_maps(study: Study, data_root: Path | None, device: str) -> Markup:
    """Some pairs of the validation split, drawn by lot, before the reference, the best ham and the best rivals."""
    lot = draw_lot(study, stereo_sets, data_root, samples=SHOWN, networks=NETWORKS)
    if isinstance(lot, str):
        return paragraph(lot, kind="soft")
    found: dict[str, dict[int, Tensor]] = {}
    for group, run in lot.runs.items():
        assert run.weights
        net, info = load_stereo(run.weights)
        net.to(pick_device(device))
        found[group.name] = {i: disparity_of(net, info, each.left, each.right) for i, each in lot.samples.items()}
    said = (
        f"{len(lot.samples)} pairs of {lot.words}, with the best weights of each run. Disparities run from dark (far) "
        "to light (near), on one scale for a row. Grey is what nobody knows."
    )
    colours = (
        (FINE, "within 1 px"),
        (OFF, "1 ... 3 px off"),
        (WRONG, "more than 3 px off"),
        (UNKNOWN_COLOUR, "unknown"),
    )
    rows = [
        _row(lot.data, index, sample, {name: maps[index] for name, maps in found.items()})
        for index, sample in lot.samples.items()
    ]
    return Markup(paragraph(said) + legend(list(colours)) + "".join(rows))


def _row(data: StereoSet, index: int, sample: StereoSample, found: dict[str, Tensor]) -> Markup:
    highest = float(sample.disparity.max())
    entries = [
        (picture(shrink(sample.left), photo=is_photo(sample.left)), f"{data.ids[index]}, left"),
        (_map(sample.disparity, highest), f"true disparity, up to {highest:.0f} px"),
    ]
    for name, disparity in found.items():
        errors = DisparityErrors()
        errors.update(disparity, sample.disparity)
        means = mean_errors(errors.all)
        epe = "" if means is None else f"EPE {means[0]:.2f} px, {100 * means[2]:.1f} % above 3 px"
        entries.append((_map(disparity.clamp_min(1e-3), highest), name))
        entries.append((picture(off(disparity, sample.disparity)), f"errors, {epe}"))
    return tiles(entries, large=is_photo(sample.left))


def _map(disparity: Tensor, highest: float) -> str:
    return picture(coloured(shrink(disparity, labels=True), highest))


def off(disparity: Tensor, truth: Tensor) -> Tensor:
    """h w, h w   ->   3 h w: how far each known pixel is off, in three classes"""
    error = (disparity - truth).abs()
    kind = sum((error > bound).to(torch.uint8) for bound in BOUNDS)
    assert isinstance(kind, Tensor)
    kind = torch.where(truth == UNKNOWN, torch.tensor(3, dtype=torch.uint8), kind)
    colours = torch.tensor([FINE, OFF, WRONG, UNKNOWN_COLOUR], dtype=torch.uint8)
    return colours[shrink(kind, labels=True).long()].movedim(2, 0)
