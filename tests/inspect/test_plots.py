"""The figures show the data they are given."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import hamburger as hb
from hamburger.inspect import convergence, feature_maps, gradient_series, reconstruction_errors, spectrum
from hamburger.inspect.plots import plot_convergence, plot_errors, plot_maps, plot_series, plot_spectrum

IMAGES = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))


def test_plots_show_the_data():
    from matplotlib.figure import Figure

    net = nn.Sequential(nn.Conv2d(3, 4, 1), hb.Hamburger(4, ham="cd", rank=2, steps=3))
    errors, moves = reconstruction_errors(net, IMAGES), convergence(net, IMAGES, steps=4)
    series = gradient_series(net, IMAGES, lambda y: y.square().sum())
    shares = spectrum(net, IMAGES, "1")
    drawn = Figure().subplots(1, 4)
    for axes, plot, data in zip(
        drawn,
        (plot_spectrum, plot_errors, plot_convergence, plot_series),
        (shares, errors, moves, series),
        strict=True,
    ):
        plot(axes, data)
    np.testing.assert_allclose(drawn[0].lines[1].get_ydata(), 100 * shares.after.mean(0))
    np.testing.assert_array_equal(drawn[1].lines[1].get_ydata(), errors[1, 0])
    np.testing.assert_allclose(drawn[2].lines[0].get_ydata(), np.array(moves[0][0].moves) / moves[0][0].size)
    np.testing.assert_allclose(drawn[3].lines[0].get_ydata(), series.terms[0, 0].flatten(1).norm(dim=1))
    figure = Figure()
    plot_maps(figure, feature_maps(net, IMAGES, "1").after[0], columns=3)
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(figure.axes) == 6
    assert len(images) == 4
