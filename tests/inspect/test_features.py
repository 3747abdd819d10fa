"""Feature maps and spectra of layers with channels first and last, against a hook and numpy; their figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import OptionError, UnknownNameError
from hamburger.inspect.plots import plot_convergence, plot_errors, plot_maps, plot_series, plot_spectrum
from hamburger.inspect.solves import convergence, gradient_series, reconstruction_errors
from hamburger.inspect.spectra import feature_maps, spectrum, strongest

IMAGES = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(1))


class Last(nn.Module):
    """Works on b h w c, as Swin does."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, 7)

    def forward(self, x):
        return self.mix(x.movedim(1, 3))


def test_channels_last_are_unfolded_along_their_channels():
    net = Last()
    with torch.no_grad():
        maps = net(IMAGES).movedim(3, 1).flatten(2).double().numpy()  # 2 7 30
    energy = np.linalg.svd(maps, compute_uv=False) ** 2
    found = spectrum(net, IMAGES, "mix", channels=-1)
    assert found.after.shape == (2, 7)
    np.testing.assert_allclose(found.after.numpy(), np.cumsum(energy, 1) / energy.sum(1, keepdims=True), rtol=1e-6)
    assert feature_maps(net, IMAGES, "mix", channels=3).after.shape == (2, 7, 6, 5)
    for channels in (0, 4, -4):
        with pytest.raises(OptionError, match=r"channels must be an axis of .* after the batch"):
            spectrum(net, IMAGES, "mix", channels=channels)


def test_maps_by_energy():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    found = feature_maps(net, IMAGES, "1")
    with torch.no_grad():
        torch.testing.assert_close(found.before, net[0](IMAGES))
    sizes = np.square(found.after.numpy()).sum((2, 3))
    np.testing.assert_allclose(found.energies_after.numpy(), sizes, rtol=1e-6)
    ordered = strongest(found.after, found.energies_after)
    for image in range(2):
        order = np.argsort(-sizes[image], kind="stable")
        np.testing.assert_array_equal(ordered[image].numpy(), found.after[image].numpy()[order])
    with pytest.raises(UnknownNameError, match="feature_maps: the model has no layer '2'"):
        feature_maps(net, IMAGES, "2")


def test_figures_show_the_data():
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
    pictures = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(figure.axes) == 6
    assert len(pictures) == 4
