"""Trained networks on validation images: predictions, atoms of the hams, and spectra before and after the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.devices import pick_device
from hamburger.errors import NotFiniteError
from hamburger.inspect.activations import rank_for, spectrum
from hamburger.inspect.solves import code_maps, list_ham_layers
from hamburger.registry import options_of
from hamburger.report import html
from hamburger.report.html import CellText, Markup
from hamburger.report.study import RunGroup, RunRecord, Study
from hamburger.training.recipe import check_data_options
from hamburger.training.visualizer import Visualizer

T = TypeVar("T")
Progress = Callable[[int, int, str], object]  # called with how much is done, all there is to do, and what it is
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

    visualizer: Visualizer
    indices: tuple[int, ...]
    networks: tuple[GalleryNetwork, ...]  # the reference first, if it has weights
    device: torch.device

    def inputs(self, network: GalleryNetwork, count: int) -> dict[int, Tensor]:
        """Input tensors of the first `count` images; empty if the task has no single input tensor."""
        inputs = {i: self.visualizer.input(i, network.info, self.device) for i in self.indices[:count]}
        return {i: x for i, x in inputs.items() if x is not None}


def open_gallery(study: Study, data_root: Path | None, *, device: str = "auto") -> Gallery | str:
    """The gallery, or the reason why there is none."""
    task = study.task
    visualizer = task.visualizer
    if visualizer is None:
        return f"The task '{task.name}' has no images to show."
    chosen = list(_choose(study))
    if not chosen:
        return "No run has weights (best.safetensors) yet."
    recipe = chosen[0][1].recipe["data"]
    name, split = recipe["name"], recipe.get("val_split", "val")
    if data_root is None and "root" in options_of(task.datasets[name]):
        return f"The data set '{name}' is on disk and no folder was given (--data DIR)."
    check_data_options(f"report: {chosen[0][1].path}", recipe.get("options") or {})
    on = pick_device(device)
    networks = []
    data: Any = None
    for group, run in chosen:
        assert run.weights
        net, info = task.load(run.weights)
        data = data or task.split(info, name, split, data_root, recipe.get("options") or {}, whole=False)
        task.check_fits(f"report: {run.weights}", info, data)
        networks.append(GalleryNetwork(group, run, net.to(on).eval(), info))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED)).tolist()
    return Gallery(visualizer(data), tuple(order[:CANDIDATES]), tuple(networks), on)


def _choose(study: Study) -> Iterator[tuple[RunGroup, RunRecord]]:
    """One run of each group on the reference's data: the lowest seed that all groups have, else the group's lowest."""
    with_weights = {group: [run for run in group.runs if run.weights] for group in study.groups}
    groups = [group for group in study.groups if with_weights[group]]
    groups = [group for group in groups if _data(group) == _data(groups[0])]
    seeds = [{run.seed for run in with_weights[group]} for group in groups]
    shared = min(set.intersection(*seeds), default=None) if seeds else None
    for group in groups:
        runs = with_weights[group]
        yield group, next((run for run in runs if run.seed == shared), runs[0])


def _data(group: RunGroup) -> tuple[object, ...]:
    data = group.runs[0].recipe["data"]
    return data.get("name"), data.get("options"), data.get("val_split")


# -- images and predictions, side by side ------------------------------------------------------------------------------


def _predict(gallery: Gallery, network: GalleryNetwork, index: int) -> Any:
    try:
        return gallery.visualizer.predict(network.net, network.info, gallery.device, index)
    except NotFiniteError as broken:
        raise NotFiniteError(f"report: {network.run.weights}: {broken}") from None


def _track(what: str, items: Sequence[T], progress: Progress) -> Iterator[T]:
    """The items; `progress` is called before each."""
    for done, item in enumerate(items):
        progress(done, len(items), what)
        yield item


def render_predictions(study: Study, gallery: Gallery, progress: Progress) -> Markup:
    """Some random images, some where the context gains most, some where it loses most."""
    visualizer = gallery.visualizer
    # the reference, the best ham and the best rival that have weights; at least one network
    groups = [study.reference, study.best("ham"), study.best("rival") or study.best("breads")]
    networks = [network for group in groups for network in gallery.networks if network.group is group]
    shown = list(dict.fromkeys(networks)) or list(gallery.networks[:1])
    predictions: dict[str, dict[int, Any]] = {network.group.name: {} for network in shown}
    for network, i in _track("predictions", list(product(shown, gallery.indices)), progress):
        predictions[network.group.name][i] = _predict(gallery, network, i)
    names = ", ".join(f"{network.group.name} (seed {network.run.seed})" for network in shown)
    caption = (
        f"{len(gallery.indices)} images of the {visualizer.split.split} split of {visualizer.split.name}, drawn with a "
        f"fixed seed, predicted by {names}: best weights of each run, {visualizer.images}. Gains and losses are in "
        f"{visualizer.metric.label}; they are the extremes of these images, not typical ones."
    )
    parts = [html.paragraph(caption), *(html.legend(entries) for entries in visualizer.legends(gallery.indices))]
    parts.append(html.heading(f"Random images (seed {SEED})"))
    parts.append(_prediction_rows(visualizer, predictions, gallery.indices[: visualizer.each]))
    if len(shown) > 1:
        (first, before), (second, after) = list(predictions.items())[:2]
        gains = {i: visualizer.judge(i, after[i]) - visualizer.judge(i, before[i]) for i in gallery.indices}
        sign = 1 if visualizer.metric.higher else -1
        ranked = sorted(gains, key=lambda i: (-sign * gains[i], i))
        best, worst = ranked[: visualizer.each], ranked[: -visualizer.each - 1 : -1]
        for title, extremes in (
            (f"Where {second} gains most over {first}", [i for i in best if sign * gains[i] > 0]),
            (f"Where {second} loses most to {first}", [i for i in worst if sign * gains[i] < 0]),
        ):
            parts += [html.heading(title), _prediction_rows(visualizer, predictions, extremes, gains)]
            if not extremes:
                parts.append(html.paragraph("None of the images.", kind="soft"))
    return Markup("".join(parts))


def _prediction_rows(
    visualizer: Visualizer,
    predictions: Mapping[str, Mapping[int, Any]],
    indices: Sequence[int],
    gains: Mapping[int, float] | None = None,
) -> Markup:
    """A row of tiles for each image; if every image has one tile, all of them in one row."""
    rows = []
    for index in indices:
        gain = (
            ""
            if gains is None
            else f", {visualizer.metric.format_difference(gains[index])} {visualizer.metric.difference_unit}"
        )
        images = visualizer.row(index, {name: by_index[index] for name, by_index in predictions.items()}, gain)
        photo = html.is_photo(images[0].pixels)
        entries = [
            (
                html.encode_image(html.shrink(each.pixels, labels=each.drawn), photo=photo and not each.drawn),
                each.caption,
            )
            for each in images
        ]
        rows.append((entries, photo))
    if rows and all(len(entries) == 1 for entries, _ in rows):
        return html.tiles([entries[0] for entries, _ in rows], large=any(photo for _, photo in rows))
    return Markup("".join(html.tiles(entries, large=photo) for entries, photo in rows))


# -- atoms drawn over an image -----------------------------------------------------------------------------------------


ATOM_IMAGES, ATOMS = 2, 7
OPACITY = 0.75


def render_atoms(gallery: Gallery, progress: Progress) -> Markup:
    """The strongest atoms of every ham on the first images of the gallery."""
    parts = []
    for network in _track("atoms", gallery.networks, progress):
        hams = [name for name, ham in list_ham_layers(network.net).items() if ham.axis == "spatial"]
        inputs = gallery.inputs(network, ATOM_IMAGES)
        if len(hams) == 1 and inputs:
            parts.append(html.heading(f"{network.group.name}, seed {network.run.seed}"))
            for index, x in inputs.items():
                atoms = code_maps(network.net, x, layer=hams[0])
                image = html.shrink(gallery.visualizer.image(index))
                name, photo = gallery.visualizer.name(index), html.is_photo(image)
                parts.append(atom_tiles(image, name, atoms.maps[0], atoms.energies[0], photo=photo))
    if not parts:
        return html.paragraph("No network here has a ham: there are no atoms to show.", kind="soft")
    text = (
        "A ham writes its input as X = D C: r atoms (columns of D), and for each a row of C that says how much of "
        "it every position holds. Shown is that row over the image, for the atoms whose part of D C has most "
        "energy (the squared norm), with its share of the sum over all atoms. Each map is scaled to its own "
        "maximum; bright is large. If codes have signs (CD), orange is above zero, purple below, white is "
        "zero. Atoms are computed for each image, so the first atom of one image is not that of another."
    )
    return Markup(html.paragraph(text) + "".join(parts))


def atom_tiles(image: Tensor, name: str, maps: Tensor, energies: Tensor, *, photo: bool = False) -> Markup:
    """The image, and over it the codes of its strongest atoms.   3 h w uint8, maps: s r h' w', energies: s r"""
    energies, order = energies.flatten().cpu().sort(descending=True, stable=True)
    shares = energies / energies.sum().clamp_min(1e-12)
    maps = maps.flatten(0, 1).float().cpu()
    entries = [(html.encode_image(image, photo=photo), name)]
    for rank, atom in enumerate(order[:ATOMS].tolist()):
        drawn = html.encode_image(overlay_map(image, maps[atom]), photo=photo)
        entries.append((drawn, f"atom {rank + 1}: {100 * float(shares[rank]):.1f} %"))
    return html.tiles(entries, large=photo)


def overlay_map(image: Tensor, values: Tensor) -> Tensor:
    """Draw a map of any size over the grey image, every position a block.   3 h w uint8, h' w'   ->   3 h w uint8"""
    grey = image.float().mean(0) / 255
    colours = html.colourise(values, signed=bool((values < 0).any()))
    colours = F.interpolate(colours[None], size=image.shape[1:], mode="nearest-exact")[0]
    mixed = OPACITY * colours + (1 - OPACITY) * grey
    return (255 * mixed).round().clamp(0, 255).to(torch.uint8)


# -- spectra before and after the context and the ham (Fig. 5) ---------------------------------------------------------


SPECTRUM_IMAGES = 8
SHARE = 0.9
MeanCurves = tuple[Tensor, Tensor]  # before and after a layer


def render_spectra(gallery: Gallery, colours: Mapping[str, str], progress: Progress) -> Markup:
    """Two figures and a table; a sentence if no network has a context. `colours` are by name of the group."""
    curves: dict[str, dict[str, MeanCurves]] = {"context": {}, "ham": {}}
    counts: list[list[CellText]] = []
    for network in _track("spectra", gallery.networks, progress):
        name = network.group.name
        context, hams = gallery.visualizer.context(network.net), list(list_ham_layers(network.net))
        layers = {"context": context} if context is not None and network.group.kind != "baseline" else {}
        layers |= {"ham": hams[0]} if hams else {}
        inputs = list(gallery.inputs(network, SPECTRUM_IMAGES).values())
        for part, layer in layers.items() if inputs else ():
            spectra = [spectrum(network.net, x, layer) for x in inputs]
            ends = [[each.before.cpu() for each in spectra], [each.after.cpu() for each in spectra]]
            curves[part][name] = _mean_curve(ends[0]), _mean_curve(ends[1])
            ranks = [float(torch.cat([rank_for(shares, SHARE) for shares in end]).double().mean()) for end in ends]
            label = name if part == "context" else f"{name}, ham alone"
            counts.append([label, *(html.number(rank, "{:.1f}".format) for rank in ranks)])
    if not counts:
        return html.paragraph("No network here has a context: there is no spectrum to show.", kind="soft")
    text = (
        "Feature maps unfolded to c x n; the share of energy (squared singular values) in the largest ones, "
        f"mean over the first {min(SPECTRUM_IMAGES, len(gallery.indices))} images above. A curve that rises faster "
        "belongs to a map of lower effective rank. Left: input and output of the whole context module, skip included, "
        "as in Fig. 5 of the paper. Right: the ham alone, X and D C, which has at most rank r by construction."
    )
    titles = {"context": "Context module: input, output", "ham": "Ham alone: X, D C"}
    drawn = [_draw_spectra(part, titles[part], by_group, colours) for part, by_group in curves.items() if by_group]
    header = ["singular values for 90 %", "before", "after"]
    return Markup(html.paragraph(text) + html.side_by_side(*drawn) + html.table(header, counts, name="spectrum"))


def _mean_curve(rows: Sequence[Tensor]) -> Tensor:
    """The mean, cut to the shortest: images of different sizes have spectra of different lengths."""
    length = min(row.shape[1] for row in rows)
    return torch.cat([row[:, :length] for row in rows]).mean(0)


def _draw_spectra(part: str, title: str, curves: Mapping[str, MeanCurves], colours: Mapping[str, str]) -> Markup:
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

    return html.figure(html.render_svg(f"spectrum-{part}", draw, alt=f"{title}: cumulative share of energy"))
