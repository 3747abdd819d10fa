"""What a head asks of the maps of a backbone."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hamburger.errors import OptionError, ShapeError, check_count


def check_channels(call: str, channels: Sequence[int], *, least: int, use: str) -> tuple[int, ...]:
    """The widths of the maps, shallow to deep; at least so many, where `use` says what for."""
    if isinstance(channels, int) or not all(isinstance(c, int) for c in channels):
        raise OptionError(
            f"{call}: channels must be the widths of the backbone's maps, as (256, 512), got {channels!r}"
        )
    for c in channels:
        check_count(call, "each of the channels", c, least=1)
    if len(channels) < least:
        raise OptionError(
            f"{call}: needs at least {least} feature maps, {use}; got {len(channels)}, of widths {tuple(channels)}; "
            "choose a backbone that gives more stages"
        )
    return tuple(channels)


def check_features(call: str, features: Sequence[Tensor], channels: Sequence[int]) -> None:
    """Maps b c h w of the widths that the head was built for."""
    widths = tuple(x.shape[1] if x.dim() == 4 else None for x in features)
    if widths != tuple(channels):
        raise ShapeError(
            f"{call}: built for maps 'b c h w' of widths {tuple(channels)}, got "
            f"{[tuple(x.shape) for x in features]}; build it with the channels of the backbone that feeds it"
        )
