"""Spectra against numpy, at any layer of any model; the model is unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import InputError, OptionError, ShapeError, UnknownNameError
from hamburger.inspect.activations import (
    attention_layers,
    attention_maps,
    cumulative_energy,
    effective_rank,
    feature_maps,
    rank_for,
    record_activations,
    spectrum,
    strongest,
)


class InPlace(nn.Module):
    """Overwrites its input in place."""

    def forward(self, x):
        return x.mul_(0).add_(1.0)


@pytest.fixture
def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), hb.Hamburger(8, ham="nmf", rank=2), nn.Conv2d(8, 5, 1))


def by_numpy(x):
    rows = []
    for sample in x.flatten(2).double().numpy():
        energy = np.linalg.svd(sample, compute_uv=False) ** 2
        rows.append(np.cumsum(energy) / energy.sum())
    return np.stack(rows)


@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (1, 6, 3), (3, 4, 2, 3, 2)], ids=str)
def test_cumulative_energy_matches_numpy(shape):
    x = torch.randn(shape)
    np.testing.assert_allclose(cumulative_energy(x).numpy(), by_numpy(x), rtol=1e-9)


def test_spectrum_uses_input_and_output_of_the_layer(net):
    images = torch.rand(2, 3, 6, 7)
    net.eval()
    with torch.no_grad():
        before = net[0](images)
        after = net[1](before)
    spectra = spectrum(net, images, "1")
    np.testing.assert_allclose(spectra.before.numpy(), by_numpy(before), rtol=1e-6)
    np.testing.assert_allclose(spectra.after.numpy(), by_numpy(after), rtol=1e-6)


def test_ham_output_has_the_rank_of_its_dictionary(net):
    spectra = spectrum(net, torch.rand(2, 3, 6, 7), "1.ham")
    assert rank_for(spectra.after, 1 - 1e-6).max() <= 2
    assert rank_for(spectra.before, 1 - 1e-6).min() > 2


def test_rank_for_counts_the_largest_singular_values():
    x = torch.diag(torch.tensor([3.0, 2.0, 1.0]))[None]  # energies 9, 4, 1 of 14
    assert rank_for(cumulative_energy(x), 0.5).tolist() == [1]
    assert rank_for(cumulative_energy(x), 0.9).tolist() == [2]
    assert rank_for(cumulative_energy(x), 1.0).tolist() == [3]


def test_model_is_unchanged(net):
    net.train()
    net[2].eval()
    modes = [module.training for module in net.modules()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    spectrum(net, torch.rand(1, 3, 4, 4), "1")
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_activations_are_copied_before_in_place_changes():
    net = nn.Sequential(nn.Identity(), InPlace(), InPlace())
    images = torch.rand(1, 3, 4, 4)
    seen = record_activations("test", net, images.clone(), ["1"])["1"]
    assert torch.equal(seen.before, images)
    assert torch.equal(seen.after, torch.ones_like(images))


def test_a_zero_map_has_no_energy():
    assert cumulative_energy(torch.zeros(1, 3, 4)).tolist() == [[0.0, 0.0, 0.0]]


def test_mistakes_are_named(net):
    with pytest.raises(UnknownNameError, match=r"no layer '1\.hma'; did you mean '1\.ham'"):
        spectrum(net, torch.rand(1, 3, 4, 4), "1.hma")
    with pytest.raises(ShapeError, match=r"needs a non-empty map .* \(2, 3\)"):
        cumulative_energy(torch.rand(2, 3))
    with pytest.raises(InputError, match="floating point"):
        spectrum(net, torch.zeros(1, 3, 4, 4, dtype=torch.uint8), "1")
    with pytest.raises(InputError, match="the images hold values that are not finite"):
        spectrum(net, torch.full((1, 3, 4, 4), torch.nan), "1")
    with pytest.raises(ShapeError, match=r"must have a batch axis \(got \(3,\)"):
        spectrum(net, torch.rand(3), "1")
    broken = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
    nn.init.constant_(broken[0].weight, torch.inf)
    with pytest.raises(InputError, match="layer '1' receives values that are not finite, for finite images"):
        spectrum(broken, torch.rand(1, 3, 4, 4), "1")
    unused = nn.Sequential(nn.Conv2d(3, 3, 1))
    unused[0].never = nn.ReLU()
    with pytest.raises(InputError, match=r"'0\.never' was not called"):
        spectrum(unused, torch.rand(1, 3, 4, 4), "0.never")
    assert not any(module._forward_hooks for module in unused.modules())


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
    spectra = spectrum(net, IMAGES, "mix", channels=-1)
    assert spectra.after.shape == (2, 7)
    np.testing.assert_allclose(spectra.after.numpy(), np.cumsum(energy, 1) / energy.sum(1, keepdims=True), rtol=1e-6)
    assert feature_maps(net, IMAGES, "mix", channels=3).after.shape == (2, 7, 6, 5)
    for channels in (0, 4, -4):
        with pytest.raises(OptionError, match=r"channels must be an axis of .* after the batch"):
            spectrum(net, IMAGES, "mix", channels=channels)


def test_feature_maps_are_sorted_by_energy():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    result = feature_maps(net, IMAGES, "1")
    with torch.no_grad():
        torch.testing.assert_close(result.before, net[0](IMAGES))
    sizes = np.square(result.after.numpy()).sum((2, 3))
    np.testing.assert_allclose(result.energies_after.numpy(), sizes, rtol=1e-6)
    ordered = strongest(result.after, result.energies_after)
    for image in range(2):
        order = np.argsort(-sizes[image], kind="stable")
        np.testing.assert_array_equal(ordered[image].numpy(), result.after[image].numpy()[order])
    with pytest.raises(UnknownNameError, match="feature_maps: the model has no layer '2'"):
        feature_maps(net, IMAGES, "2")


def test_effective_rank_of_known_spectra():
    equal = torch.eye(5)[None]
    single = torch.ones(1, 5, 7)
    two = torch.diag(torch.tensor([3.0, 3.0, 0.0, 0.0]))[None]
    for x, rank in ((equal, 5.0), (single, 1.0), (two, 2.0)):
        assert effective_rank(cumulative_energy(x)).item() == pytest.approx(rank, rel=1e-5)


def test_attention_layers_are_found_and_missed_by_name():
    net = nn.Sequential()
    net.stem, net.context = nn.Conv2d(3, 8, 1), hb.create_context("da", 8)
    assert attention_layers(net) == ["context.position.1"]
    assert attention_maps(net, torch.rand(1, 3, 4, 4), "").shape == (1, 1, 16, 16)
    with pytest.raises(InputError, match="must contain one attention layer; it has none"):
        attention_maps(net, torch.rand(1, 3, 4, 4), "stem")
    both = nn.Sequential(nn.Conv2d(3, 8, 1), hb.create_context("sa", 8), hb.create_context("nonlocal", 8))
    with pytest.raises(InputError, match="must contain one attention layer; it has: 1, 2"):
        attention_maps(both, torch.rand(1, 3, 4, 4), "")
