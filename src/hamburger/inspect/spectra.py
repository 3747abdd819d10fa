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

    `before`: b m    `after`: b m'    with m = min(c, n); entry i: share of the i + 1 largest singular values.
    """

    before: Tensor
    after: Tensor


def spectrum(model: nn.Module, images: Tensor, layer: str, *, channels: int = 1) -> Spectrum:
    """Spectra of the input and output of the named layer of any model.   images: b 3 h w, as the model takes them

    The model runs once in evaluation mode, with hooks that are removed afterwards. Of several inputs or outputs the
    first tensor counts. For a Hamburger named "context", `layer="context"` is Fig. 5 (the skip included) and
    `layer="context.ham"` the low-rank reconstruction alone. `channels` is the channel axis, such as -1 for a layer
    that works on (b, h, w, c); tokens (b, n, c) have the same spectrum either way.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
    >>> spectrum(net, torch.rand(2, 3, 5, 5), "1").after.shape
    torch.Size([2, 8])
    """
    activations = record_activations("spectrum", model, images, [layer])[layer]
    before, after = (cumulative_energy(channels_second("spectrum", each, channels)) for each in activations)
    return Spectrum(before, after)


def channels_second(call: str, x: Tensor, channels: int) -> Tensor:
    """Move the channels to the second axis.   ->   b c *spatial"""
    if x.dim() < 3:
        raise ShapeError(f"{call}: needs a non-empty map (b, c, *spatial) (got {tuple(x.shape)})")
    if not -x.dim() < channels < x.dim() or channels == 0:
        raise OptionError(f"{call}: channels must be an axis of {tuple(x.shape)} after the batch (got {channels})")
    return x.movedim(channels, 1)


def cumulative_energy(x: Tensor) -> Tensor:
    """Share of energy (squared singular values) in the largest ones.   b c *spatial   ->   b min(c, n), float64

    Each sample is unfolded to c x n. A sample of zeros gives zeros.
    """
    if x.dim() < 3 or 0 in x.shape:
        raise ShapeError(f"spectrum: needs a non-empty map (b, c, *spatial) (got {tuple(x.shape)})")
    rows = x.detach().flatten(2).double()
    gram = rows @ rows.mT if rows.shape[1] <= rows.shape[2] else rows.mT @ rows
    # eigenvalues of the Gram matrix are the squared singular values, many times faster than an SVD on a GPU
    energy = torch.linalg.eigvalsh(gram).flip(1).clamp_min(0).cumsum(1)
    return energy / energy[:, -1:].clamp_min(torch.finfo(energy.dtype).tiny)


def numerical_rank(shares: Tensor, size: int) -> Tensor:
    """The number of singular values above `size` * float32 epsilon * the largest, as numpy and torch count.   b m -> b

    `size` is the larger of the numbers of rows and columns.
    """
    parts = shares.diff(dim=1, prepend=shares.new_zeros(len(shares), 1))
    return (parts > (size * torch.finfo(torch.float32).eps) ** 2 * parts[:, :1]).sum(1)


def shares_at(shares: Tensor, counts: Sequence[int]) -> Tensor:
    """Shares of energy in the `counts` largest singular values; beyond the last, all of it.   b m   ->   b counts"""
    m = shares.shape[1]
    return shares[:, [min(count, m) - 1 for count in counts]]


def rank_for(shares: Tensor, share: float) -> Tensor:
    """The number of singular values that hold that share of the energy.   b m   ->   b, whole numbers"""
    # the last share is 1 up to rounding: never return more than there are
    return (shares < share).sum(1).add(1).clamp_max(shares.shape[1])


def effective_rank(shares: Tensor) -> Tensor:
    """Effective rank: the exponential of the entropy of the energy.   b m   ->   b, 1 ... m

    `shares` are cumulative, from `cumulative_energy`. Equal singular values give m, a single one gives 1.
    """
    parts = shares.diff(dim=1, prepend=shares.new_zeros(len(shares), 1)).clamp_min(0)
    return torch.special.entr(parts).sum(1).exp()


# -- feature maps (Fig. 6) --------------------------------------------------------------------------------------------


class FeatureMaps(NamedTuple):
    """`before`, `after`: b c *spatial, in the model's order of channels.    `energies_*`: b c, squared norms."""

    before: Tensor
    after: Tensor
    energies_before: Tensor
    energies_after: Tensor


def feature_maps(model: nn.Module, images: Tensor, layer: str, *, channels: int = 1) -> FeatureMaps:
    """Input and output of the named layer in evaluation.   images: b 3 h w, as the model takes them

    `channels` is the channel axis of both, such as -1 for channels-last layers.
    """
    activations = record_activations("feature_maps", model, images, [layer])[layer]
    maps = [channels_second("feature_maps", each, channels) for each in activations]
    return FeatureMaps(*maps, *(each.double().flatten(2).square().sum(2) for each in maps))


def strongest(maps: Tensor, energies: Tensor) -> Tensor:
    """Sort the channels of each image by falling energy.   b c *spatial, b c   ->   b c *spatial"""
    order = energies.argsort(dim=1, descending=True, stable=True)
    return maps.flatten(2).gather(1, order[:, :, None].expand(-1, -1, maps[0, 0].numel())).view_as(maps)
