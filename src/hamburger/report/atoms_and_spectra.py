"""Atoms drawn over an image, and spectra before and after the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.inspect.activations import rank_for, spectrum
from hamburger.inspect.solves import code_maps, list_ham_layers
from hamburger.report.figures import colourise, encode_image, is_photo, line_style, render_svg, shrink
from hamburger.report.gallery import Gallery, GalleryNetwork
from hamburger.report.html import CellText, Markup, figure, heading, number, paragraph, side_by_side, table, tiles
from hamburger.report.study import Study

ATOM_IMAGES, ATOMS = 2, 7
OPACITY = 0.75


def render_atoms(gallery: Gallery) -> Markup:
    """The strongest atoms of every ham on the first images of the gallery."""
    with_ham = [each for each in gallery.exhibits if len(_spatial_hams(each)) == 1 and gallery.inputs(each, 1)]
    if not with_ham:
        return paragraph("No network here has a ham: there are no atoms to show.", kind="soft")
    parts = [
        paragraph(
            "A ham writes its input as X = D C: r atoms (columns of D), and for each a row of C that says how much of "
            "it every position holds. Shown is that row over the image, for the atoms whose part of D C has most "
            "energy (the squared norm), with its share of the sum over all atoms. Each map is scaled to its own "
            "maximum; bright is large. If codes have signs (CD), orange is above zero, purple below, white is "
            "zero. Atoms are computed for each image, so the first atom of one image is not that of another."
        )
    ]
    for exhibit in with_ham:
        parts.append(heading(f"{exhibit.group.name}, seed {exhibit.run.seed}"))
        parts += [_atom_row(gallery, exhibit, index, x) for index, x in gallery.inputs(exhibit, ATOM_IMAGES).items()]
    return Markup("".join(parts))


def _spatial_hams(exhibit: GalleryNetwork) -> list[str]:
    return [name for name, ham in list_ham_layers(exhibit.net).items() if ham.axis == "spatial"]


def _atom_row(gallery: Gallery, exhibit: GalleryNetwork, index: int, x: Tensor) -> Markup:
    (layer,) = _spatial_hams(exhibit)
    atoms = code_maps(exhibit.net, x, layer=layer)
    maps, energies = atoms.maps[0].flatten(0, 1).float().cpu(), atoms.energies[0].flatten().cpu()
    energies, order = energies.sort(descending=True, stable=True)
    shares = energies / energies.sum().clamp_min(1e-12)
    image = shrink(gallery.showing.image(index))
    entries = [(encode_image(image, photo=is_photo(image)), gallery.showing.name(index))]
    for index in range(min(ATOMS, len(order))):
        drawn = overlay_map(image, maps[order[index]])
        entries.append(
            (encode_image(drawn, photo=is_photo(image)), f"atom {index + 1}: {100 * float(shares[index]):.1f} %")
        )
    return tiles(entries, large=is_photo(image))


def overlay_map(image: Tensor, values: Tensor) -> Tensor:
    """Draw a map of any size over the grey image, every position a block.   3 h w uint8, h' w'   ->   3 h w uint8"""
    grey = image.float().mean(0) / 255
    colours = colourise(values, signed=bool((values < 0).any()))
    colours = F.interpolate(colours[None], size=image.shape[1:], mode="nearest-exact")[0]
    mixed = OPACITY * colours + (1 - OPACITY) * grey
    return (255 * mixed).round().clamp(0, 255).to(torch.uint8)


# -- spectra before and after the context and the ham (Fig. 5) ---------------------------------------------------------


SPECTRUM_IMAGES = 8
SHARE = 0.9
MeanCurves = tuple[Tensor, Tensor]


def render_spectra(study: Study, gallery: Gallery) -> Markup:
    """Two figures and a table; a sentence if no network has a context."""
    whole: dict[str, MeanCurves] = {}
    inner: dict[str, MeanCurves] = {}
    counts: list[list[CellText]] = []
    for exhibit in gallery.exhibits:
        context, hams = gallery.showing.context(exhibit.net), list(list_ham_layers(exhibit.net))
        layers = {"context": context} if context is not None and exhibit.group.kind != "baseline" else {}
        layers |= {"ham": hams[0]} if hams else {}
        inputs = list(gallery.inputs(exhibit, SPECTRUM_IMAGES).values())
        for part, layer in layers.items() if inputs else ():
            before, after, ranks = measure_spectra(exhibit, inputs, layer)
            (whole if part == "context" else inner)[exhibit.group.name] = before, after
            name = exhibit.group.name if part == "context" else f"{exhibit.group.name}, ham alone"
            counts.append([name, *(number(value, f"{value:.1f}") for value in ranks)])
    if not counts:
        return paragraph("No network here has a context: there is no spectrum to show.", kind="soft")
    images = min(SPECTRUM_IMAGES, len(gallery.indices))
    text = (
        "Feature maps unfolded to c x n; the share of energy (squared singular values) in the largest ones, "
        f"mean over the first {images} images above. A curve that rises faster belongs to a map of lower "
        "effective rank. Left: input and output of the whole context module, skip included, as in Fig. 5 of the paper. "
        "Right: the ham alone, X and D C, which has at most rank r by construction."
    )
    colours = {group.name: line_style(study, group)["color"] for group in study.groups}
    drawn = [
        _draw_spectra("spectrum-context", "Context module: input, output", whole, colours),
        _draw_spectra("spectrum-ham", "Ham alone: X, D C", inner, colours),
    ]
    header = ["singular values for 90 %", "before", "after"]
    return Markup(paragraph(text) + side_by_side(*filter(None, drawn)) + table(header, counts, name="spectrum"))


def measure_spectra(
    exhibit: GalleryNetwork, inputs: Sequence[Tensor], layer: str
) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """Mean spectra before and after the layer, and the mean numbers of singular values for 90 %."""
    befores, afters = [], []
    for x in inputs:
        shares = spectrum(exhibit.net, x, layer)
        befores.append(shares.before[0].cpu())
        afters.append(shares.after[0].cpu())
    counts = [torch.stack([rank_for(row[None], SHARE)[0] for row in rows]).double() for rows in (befores, afters)]
    return _mean(befores), _mean(afters), (float(counts[0].mean()), float(counts[1].mean()))


def _mean(rows: list[Tensor]) -> Tensor:
    """The mean, cut to the shortest: images of different sizes have spectra of different lengths."""
    length = min(len(row) for row in rows)
    return torch.stack([row[:length] for row in rows]).mean(0)


def _draw_spectra(name: str, title: str, curves: dict[str, MeanCurves], colours: dict[str, str]) -> str:
    if not curves:
        return ""

    def draw(axes: Any) -> None:
        for group, (before, after) in curves.items():
            for shares, dashes in ((before, ":"), (after, "-")):
                axes.plot(range(1, len(shares) + 1), 100 * shares.numpy(), dashes, color=colours[group])
            axes.plot([], [], color=colours[group], label=group)
        axes.plot([], [], ":", color="#888888", label="before")
        axes.plot([], [], "-", color="#888888", label="after")
        axes.set(title=title, xlabel="singular values", ylabel="share of energy, %", xscale="log", ylim=(None, 101))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.legend(loc="lower right")

    return figure(render_svg(name, draw, alt=f"{title}: cumulative share of energy"), "")
