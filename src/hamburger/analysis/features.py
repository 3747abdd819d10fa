"""Feature maps before and after any layer of any model (Fig. 6), with the energy of each channel."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from hamburger.analysis.hooks import look
from hamburger.analysis.spectrum import channels_second


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
    seen = look("feature_maps", model, images, [layer])[layer]
    maps = [channels_second("feature_maps", each, channels) for each in seen]
    return FeatureMaps(*maps, *(each.double().flatten(2).square().sum(2) for each in maps))


def strongest(maps: Tensor, energies: Tensor) -> Tensor:
    """The channels of each image by falling energy.   b c *spatial, b c   ->   b c *spatial"""
    order = energies.argsort(dim=1, descending=True, stable=True)
    return maps.flatten(2).gather(1, order[:, :, None].expand(-1, -1, maps[0, 0].numel())).view_as(maps)
