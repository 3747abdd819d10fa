"""Spectra and feature maps before and after any layer of any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, ShapeError
from hamburger.inspect.hooks import record_activations


class Spectrum(NamedTuple):
    """Cumulative shares of energy of a layer's input and output, one row per image.

    `before`: b m    `after`: b m'    with m = min(c, n) of each; entry i is the share of the i + 1 largest.
    """

    before: Tensor
    after: Tensor


def spectrum(model: nn.Module, images: Tensor, layer: str, *, channels: int = 1) -> Spectrum:
    """Spectra of what the named layer of any model receives and returns.   images: b 3 h w, as the model takes them

    The model is evaluated once, with hooks that are removed again; its mode is kept. Of several inputs or outputs the
    first tensor counts. For a Hamburger named "context", `layer="context"` is Fig. 5 (the skip included) and
    `layer="context.ham"` the low-rank reconstruction alone. `channels` is the axis of the channels, such as -1 for a
    layer that works on (b, h, w, c); tokens (b, n, c) have the same spectrum either way.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
    >>> spectrum(net, torch.rand(2, 3, 5, 5), "1").after.shape
    torch.Size([2, 8])
    """
    seen = record_activations("spectrum", model, images, [layer])[layer]
    before, after = (cumulative_energy(channels_second("spectrum", each, channels)) for each in seen)
    return Spectrum(before, after)


def channels_second(call: str, x: Tensor, channels: int) -> Tensor:
    """A map with its channels on the second axis.   ->   b c *spatial"""
    if x.dim() < 3:
        raise ShapeError(f"{call}: needs a map (b, c, *spatial) with at least one entry, got {tuple(x.shape)}")
    if not -x.dim() < channels < x.dim() or channels == 0:
        raise OptionError(f"{call}: channels must name an axis after the batch of {tuple(x.shape)}, got {channels}")
    return x.movedim(channels, 1)


def cumulative_energy(x: Tensor) -> Tensor:
    """Share of the squared singular values that the largest ones hold.   b c *spatial   ->   b min(c, n), float64

    Each sample is unfolded to c x n. A sample that is zero has no energy to share out and gives zeros.
    """
    if x.dim() < 3 or 0 in x.shape:
        raise ShapeError(f"spectrum: needs a map (b, c, *spatial) with at least one entry, got {tuple(x.shape)}")
    rows = x.detach().flatten(2).double()
    gram = rows @ rows.mT if rows.shape[1] <= rows.shape[2] else rows.mT @ rows
    # squares are all that is asked for, and those of a symmetric matrix are found many times faster on a card
    energy = torch.linalg.eigvalsh(gram).flip(1).clamp_min(0).cumsum(1)
    return energy / energy[:, -1:].clamp_min(torch.finfo(energy.dtype).tiny)


def numerical_rank(shares: Tensor, size: int) -> Tensor:
    """How many singular values float32 can tell from zero, for a matrix of `size` rows or columns.   b m   ->   b

    Above the largest times size times float32's rounding, as numpy and torch have it.
    """
    parts = shares.diff(dim=1, prepend=shares.new_zeros(len(shares), 1))
    return (parts > (size * torch.finfo(torch.float32).eps) ** 2 * parts[:, :1]).sum(1)


def shares_at(shares: Tensor, counts: Sequence[int]) -> Tensor:
    """The shares that so many of the largest singular values hold; all of it beyond the last.   b m   ->   b counts"""
    m = shares.shape[1]
    return shares[:, [min(count, m) - 1 for count in counts]]


def rank_for(shares: Tensor, share: float) -> Tensor:
    """How many singular values hold that share of the energy.   b m   ->   b, whole numbers"""
    # the last share is 1 up to rounding, so at most all of them are asked for
    return (shares < share).sum(1).add(1).clamp_max(shares.shape[1])


def effective_rank(shares: Tensor) -> Tensor:
    """How many singular values the energy is spread over: the exponential of its entropy.   b m   ->   b, 1 ... m

    `shares` are cumulative, as `cumulative_energy` returns them. Equal values give m, a single one gives 1.
    """
    parts = shares.diff(dim=1, prepend=shares.new_zeros(len(shares), 1)).clamp_min(0)
    return torch.special.entr(parts).sum(1).exp()


# ----------------------------------------------------------------------------------------------------------------------
# Feature maps before and after any layer of any model (Fig. 6), with the energy of each channel.


class FeatureMaps(NamedTuple):
    """`before`, `after`: b c *spatial, in the model's order of channels.    `energies_*`: b c, squared norms."""

    before: Tensor
    after: Tensor
    energies_before: Tensor
    energies_after: Tensor


def feature_maps(model: nn.Module, images: Tensor, layer: str, *, channels: int = 1) -> FeatureMaps:
    """What the named layer receives and returns in evaluation.   images: b 3 h w, as the model takes them

    `channels` is the axis of the channels in both, such as -1 for layers that have them last.
    """
    seen = record_activations("feature_maps", model, images, [layer])[layer]
    maps = [channels_second("feature_maps", each, channels) for each in seen]
    return FeatureMaps(*maps, *(each.double().flatten(2).square().sum(2) for each in maps))


def strongest(maps: Tensor, energies: Tensor) -> Tensor:
    """The channels of each image by falling energy.   b c *spatial, b c   ->   b c *spatial"""
    order = energies.argsort(dim=1, descending=True, stable=True)
    return maps.flatten(2).gather(1, order[:, :, None].expand(-1, -1, maps[0, 0].numel())).view_as(maps)
