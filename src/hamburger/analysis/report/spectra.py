"""The spectrum before and after the context, and before and after the ham alone (Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hamburger.analysis.atoms import ham_layers
from hamburger.analysis.report.drawing import line, svg
from hamburger.analysis.report.gallery import Exhibit, Gallery
from hamburger.analysis.report.groups import Study
from hamburger.analysis.report.html import Cell, Markup, figure, number, paragraph, side_by_side, table
from hamburger.analysis.spectrum import rank_for, spectrum

IMAGES = 8
SHARE = 0.9
Mean = tuple[Tensor, Tensor]


def spectra(study: Study, gallery: Gallery) -> Markup:
    """Two figures and a table; a sentence where no network has a context."""
    whole: dict[str, Mean] = {}
    inner: dict[str, Mean] = {}
    counts: list[list[Cell]] = []
    for exhibit in gallery.exhibits:
        context, hams = gallery.showing.context(exhibit.net), list(ham_layers(exhibit.net))
        layers = {"context": context} if context is not None and exhibit.group.kind != "baseline" else {}
        layers |= {"ham": hams[0]} if hams else {}
        inputs = list(gallery.inputs(exhibit, IMAGES).values())
        for part, layer in layers.items() if inputs else ():
            before, after, ranks = measure(exhibit, inputs, layer)
            (whole if part == "context" else inner)[exhibit.group.name] = before, after
            name = exhibit.group.name if part == "context" else f"{exhibit.group.name}, ham alone"
            counts.append([name, *(number(value, f"{value:.1f}") for value in ranks)])
    if not counts:
        return paragraph("No network here has a context: there is nothing to look before and after.", kind="soft")
    images = min(IMAGES, len(gallery.indices))
    text = (
        "Feature maps unfolded to c x n; how much of their energy (squared singular values) the largest ones hold, "
        f"mean over the first {images} images of the draw above. A curve that rises faster belongs to a map of lower "
        "effective rank. Left: input and output of the whole context module, skip included, as in Fig. 5 of the paper. "
        "Right: the ham alone, X and D C, which has at most rank r by construction."
    )
    colours = {group.name: line(study, group)["color"] for group in study.groups}
    drawn = [
        _drawn("spectrum-context", "Context module: input, output", whole, colours),
        _drawn("spectrum-ham", "Ham alone: X, D C", inner, colours),
    ]
    header = ["singular values for 90 %", "before", "after"]
    return Markup(paragraph(text) + side_by_side(*filter(None, drawn)) + table(header, counts, name="spectrum"))


def measure(exhibit: Exhibit, inputs: Sequence[Tensor], layer: str) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """Mean curves before and after, as far as all images have them, and the mean counts for 90 %."""
    befores, afters = [], []
    for x in inputs:
        found = spectrum(exhibit.net, x, layer)
        befores.append(found.before[0].cpu())
        afters.append(found.after[0].cpu())
    counts = [torch.stack([rank_for(row[None], SHARE)[0] for row in rows]).double() for rows in (befores, afters)]
    return _mean(befores), _mean(afters), (float(counts[0].mean()), float(counts[1].mean()))


def _mean(rows: list[Tensor]) -> Tensor:
    """Images of different sizes have spectra of different lengths: the mean over what all of them have."""
    length = min(len(row) for row in rows)
    return torch.stack([row[:length] for row in rows]).mean(0)


def _drawn(name: str, title: str, found: dict[str, Mean], colours: dict[str, str]) -> str:
    if not found:
        return ""

    def draw(axes: Any) -> None:
        for group, (before, after) in found.items():
            for shares, dashes in ((before, ":"), (after, "-")):
                axes.plot(range(1, len(shares) + 1), 100 * shares.numpy(), dashes, color=colours[group])
            axes.plot([], [], color=colours[group], label=group)
        axes.plot([], [], ":", color="#888888", label="before")
        axes.plot([], [], "-", color="#888888", label="after")
        axes.set(title=title, xlabel="singular values", ylabel="share of energy, %", xscale="log", ylim=(None, 101))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.legend(loc="lower right")

    return figure(svg(name, draw, alt=f"{title}: cumulative share of energy"), "")
