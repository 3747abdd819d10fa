"""The atoms that the hams have found, drawn over the image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.analysis.atoms import code_maps, ham_layers
from hamburger.analysis.report.drawing import heat, is_photo, picture, shrink
from hamburger.analysis.report.gallery import Exhibit, Gallery
from hamburger.analysis.report.html import Markup, heading, paragraph, tiles

IMAGES, ATOMS = 2, 7
OPACITY = 0.75


def atom_maps(gallery: Gallery) -> Markup:
    """The strongest atoms of every ham on the first images of the gallery."""
    with_ham = [each for each in gallery.exhibits if len(_spatial(each)) == 1 and gallery.inputs(each, 1)]
    if not with_ham:
        return paragraph("No network here has a ham: there are no atoms to show.", kind="soft")
    parts = [
        paragraph(
            "A ham writes its input as X = D C: r atoms (columns of D), and for each a row of C that says how much of "
            "it every position holds. Shown is that row over the image, for the atoms whose part of D C has most "
            "energy (the squared norm), with its share of the sum over all atoms. Each map is scaled to its own "
            "largest value; bright is much. Where codes have signs (CD), orange is above zero, purple below, white is "
            "zero. Atoms are found anew in each image, so the first atom of one image is not that of another."
        )
    ]
    for exhibit in with_ham:
        parts.append(heading(f"{exhibit.group.name}, seed {exhibit.run.seed}"))
        parts += [_row(gallery, exhibit, index, x) for index, x in gallery.inputs(exhibit, IMAGES).items()]
    return Markup("".join(parts))


def _spatial(exhibit: Exhibit) -> list[str]:
    return [name for name, ham in ham_layers(exhibit.net).items() if ham.axis == "spatial"]


def _row(gallery: Gallery, exhibit: Exhibit, index: int, x: Tensor) -> Markup:
    (layer,) = _spatial(exhibit)
    found = code_maps(exhibit.net, x, layer=layer)
    maps, energies = found.maps[0].flatten(0, 1).float().cpu(), found.energies[0].flatten().cpu()
    energies, order = energies.sort(descending=True, stable=True)
    shares = energies / energies.sum().clamp_min(1e-12)
    image = shrink(gallery.showing.image(index))
    entries = [(picture(image, photo=is_photo(image)), gallery.showing.name(index))]
    for place in range(min(ATOMS, len(order))):
        drawn = over(image, maps[order[place]])
        entries.append((picture(drawn, photo=is_photo(image)), f"atom {place + 1}: {100 * float(shares[place]):.1f} %"))
    return tiles(entries, large=is_photo(image))


def over(image: Tensor, values: Tensor) -> Tensor:
    """A map of any size over the grey image, every position a block.   3 h w uint8, h' w'   ->   3 h w uint8"""
    grey = image.float().mean(0) / 255
    colours = heat(values, signed=bool((values < 0).any()))
    colours = F.interpolate(colours[None], size=image.shape[1:], mode="nearest-exact")[0]
    mixed = OPACITY * colours + (1 - OPACITY) * grey
    return (255 * mixed).round().clamp(0, 255).to(torch.uint8)
