"""Draw the results of this package into matplotlib axes or figures of the caller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from hamburger.inspect.activations import Spectrum
from hamburger.inspect.solves import Contraction, GradientSeries


def plot_spectrum(axes: Any, spectrum: Spectrum) -> None:
    """Fig. 5: the mean over images, dotted before the layer, solid after it."""
    for shares, dashes, label in ((spectrum.before, ":", "before"), (spectrum.after, "-", "after")):
        mean = 100 * shares.mean(0).cpu()
        axes.plot(range(1, len(mean) + 1), mean.numpy(), dashes, label=label)
    axes.set(xlabel="largest singular values", ylabel="share of energy, %", xscale="log")
    axes.legend()


def plot_errors(axes: Any, errors: Tensor) -> None:
    """A line for each image and head.   errors: b s (K + 1), from `reconstruction_errors`"""
    axes.plot(errors.flatten(0, 1).mT.cpu().numpy())
    axes.set(xlabel="steps", ylabel="|X - D C| / |X|")


def plot_convergence(axes: Any, contractions: Iterable[Iterable[Contraction]]) -> None:
    """A line for each image and head; a straight line is linear convergence."""
    for one in (one for heads in contractions for one in heads):
        axes.plot([move / one.size for move in one.moves])
    axes.set(xlabel="step", ylabel="move of the factors, relative", yscale="log")


def plot_series(axes: Any, series: GradientSeries) -> None:
    """Norms of the terms of Eq. 12 from the last step back, a line for each image and head; dashed: the direct term."""
    norms = series.terms.flatten(3).norm(dim=3).flatten(0, 1).cpu()
    direct = series.direct.flatten(2).norm(dim=2).flatten().cpu()
    for each, first in zip(norms, direct, strict=True):
        (drawn,) = axes.plot(each.numpy())
        axes.axhline(float(first), linestyle="--", linewidth=1, color=drawn.get_color())
    axes.set(xlabel="steps before the last", ylabel="norm of the term", yscale="log")


def plot_maps(figure: Any, maps: Tensor, *, columns: int = 8) -> None:
    """Maps in a grid, each in its own scale; orange above zero, purple below.   m h w"""
    rows = -(-len(maps) // columns)
    for axes in (grid := figure.subplots(rows, columns, squeeze=False)).flat:
        axes.set_axis_off()
    for axes, values in zip(grid.flat, maps.detach().float().cpu(), strict=False):
        largest, signed = float(values.abs().max()) or 1.0, bool((values < 0).any())
        style = {"cmap": "PuOr_r", "vmin": -largest} if signed else {"cmap": "cividis", "vmin": 0.0}
        axes.imshow(values.numpy(), vmax=largest, **style)
