"""Photos explained as the first part of a page: labels, the strongest atoms and spectra. For `ham demo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hamburger.app.explain import Explanation, Model, draw_heat, explain, shrink
from hamburger.errors import OptionError
from hamburger.inference.predict_files import read_image
from hamburger.inspect.activations import rank_for
from hamburger.report import html
from hamburger.report.html import Markup
from hamburger.segmentation.predict import blend_labels

SAMPLES = Path(__file__).parent / "samples"
ATOMS = 3  # of each photo
ENERGY = 0.9
LEAD = (
    "A Hamburger is a layer that lets every pixel of an image see all others. It writes the feature map as a few "
    "patterns, its atoms, times how much of each every position holds. Attention compares all pairs of positions "
    "instead; a decomposition costs far less on large images, and gives the same output every time."
)


def render_photos(weights: Path, photos: Sequence[Path] = ()) -> Markup:
    """The title of a page, and a row of images for each photo, by default for the samples."""
    model = Model.open(weights, torch.device("cpu"))
    if model.task.name != "segmentation" or model.ham is None:
        raise OptionError(f"demo: {weights} must be segmentation weights with a ham; see `ham list weights`")
    photos = photos or sorted(SAMPLES.glob("*.jpg"))
    explanations = [(path.stem, explain(model, shrink(read_image(path), html.MAX_SIDE))) for path in photos]
    guide = (
        f"The network {weights} labels each photo (left). Right of the labels are the strongest atoms of its ham, of "
        f"{model.ham.ham.rank}. Bright pixels share one pattern, wherever they are in the photo. Shares are of the "
        "pixels, and of the energy of the reconstruction."
    )
    rows = [html.tiles(_row(name, model, each), large=True) for name, each in explanations]
    solves = {name: each.solve for name, each in explanations if each.solve is not None}

    def draw(axes: Any) -> None:
        for colour, (name, solve) in zip(html.COLOURS, solves.items(), strict=False):
            for shares, dashes in ((solve.spectrum.before, ":"), (solve.spectrum.after, "-")):
                mean = 100 * shares.mean(0)
                axes.plot(range(1, len(mean) + 1), mean.numpy(), dashes, color=colour)
            axes.plot([], [], color=colour, label=name)
        axes.plot([], [], ":", color="#888888", label="before the ham")
        axes.plot([], [], "-", color="#888888", label="after it")
        axes.set(xlabel="largest singular values", ylabel="share of energy, %", xscale="log", ylim=(None, 101))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.legend(loc="lower right")

    ranks = [
        f"{name} {' to '.join(f'{float(rank_for(end, ENERGY).double().mean()):.0f}' for end in solve.spectrum)}"
        for name, solve in solves.items()
    ]
    caption = (
        f"The ham keeps what positions have in common and drops the rest. Number of singular values with "
        f"{100 * ENERGY:.0f} % of the energy, before and after it: {', '.join(ranks)}."
    )
    figure = html.figure(html.render_svg("spectra-photos", draw, alt="share of energy in the singular values"), caption)
    title = Markup("<h1>Global context by matrix decomposition instead of attention</h1>")
    return Markup(title + html.paragraph(LEAD) + html.paragraph(guide, kind="soft") + "".join(rows) + figure)


def _row(name: str, model: Model, explanation: Explanation) -> list[tuple[str, str]]:
    """Tiles: the labels over the photo, and its strongest atoms."""
    image, label = explanation.image, explanation.label
    shares = sorted(explanation.shares.items(), key=lambda item: -item[1])
    words = ", ".join(f"{each} {100 * share:.0f} %" for each, share in shares if share >= 0.005)
    drawn = blend_labels(image, label, model.palette).movedim(2, 0)
    entries = [(html.encode_image(drawn, photo=True), f"{name}: {words}")]
    assert explanation.solve is not None
    for number, share in enumerate(explanation.solve.shares[:ATOMS].tolist()):
        heat = draw_heat(image, explanation.solve.maps[number].float())
        entries.append((html.encode_image(heat, photo=True), f"atom {number + 1}: {100 * share:.0f} %"))
    return entries
