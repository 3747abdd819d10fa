"""Sizes and widths of a pair of networks, and where their context stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hamburger.contexts.common import check_counts
from hamburger.errors import OptionError, check_count

SMALLEST = 4  # a generator starts from 4 x 4

# Widths in units of `width`. At 128 those of all the papers here. At 64 those of BigGAN, at 32 those of SNGAN on CIFAR,
# both from memory; none of the papers compares contexts at these sizes.
GENERATOR = {128: (16, 16, 8, 4, 2, 1), 64: (16, 16, 8, 4, 2), 32: (4, 4, 4, 4)}
DISCRIMINATOR = {128: (1, 2, 4, 8, 16, 16), 64: (1, 2, 4, 8, 16), 32: (2, 2, 2, 2)}
DOWNS = {128: 5, 64: 4, 32: 2}
CONTEXT_AT = {128: 32, 64: 16, 32: 16}


@dataclass(frozen=True)
class Plan:
    """Channels of a generator's first map and of each up-block; of a discriminator's blocks, `downs` of which halve."""

    resolution: int
    generator: tuple[int, ...]
    discriminator: tuple[int, ...]
    downs: int
    context_at: int

    @property
    def generator_place(self) -> int:
        """The up-block after which maps are `context_at` wide."""
        return (self.context_at // SMALLEST).bit_length() - 2

    @property
    def discriminator_place(self) -> int:
        """The first block after which they are."""
        return (self.resolution // self.context_at).bit_length() - 2


def make_plan(
    call: str,
    *,
    resolution: int,
    width: int,
    generator_multipliers: Sequence[int] | None,
    discriminator_multipliers: Sequence[int] | None,
    discriminator_downs: int | None,
    context_at: int | None,
) -> Plan:
    check_count(call, "resolution", resolution, least=4 * SMALLEST)
    check_count(call, "width", width, least=1)
    if resolution & (resolution - 1):
        raise OptionError(f"{call}: resolution must be a power of two, got {resolution}; 32, 64 and 128 have defaults")
    ups = (resolution // SMALLEST).bit_length() - 1
    up = _multipliers(call, "generator_multipliers", generator_multipliers, GENERATOR, resolution)
    down = _multipliers(call, "discriminator_multipliers", discriminator_multipliers, DISCRIMINATOR, resolution)
    if len(up) != ups + 1:
        raise OptionError(
            f"{call}: resolution {resolution} takes {ups + 1} generator_multipliers, one for the map of {SMALLEST} x "
            f"{SMALLEST} and one for each of {ups} doublings, got {len(up)}: {up}"
        )
    if discriminator_downs is None:
        known = discriminator_multipliers is None
        discriminator_downs = DOWNS[resolution] if known else min(len(down), ups)
    check_count(call, "discriminator_downs", discriminator_downs, least=1)
    most = min(len(down), ups + 1)
    if discriminator_downs > most:
        raise OptionError(
            f"{call}: discriminator_downs must be at most {most} for {len(down)} blocks at resolution {resolution}, "
            f"got {discriminator_downs}"
        )
    sizes = [resolution >> i for i in range(1, discriminator_downs + 1) if resolution >> i > SMALLEST]
    if context_at is None:
        usual = CONTEXT_AT.get(resolution, resolution // 4)
        context_at = usual if usual in sizes else sizes[-1]
    if context_at not in sizes:
        raise OptionError(
            f"{call}: context_at must be the size of a map after a block of both networks, one of {sizes}, got "
            f"{context_at!r}"
        )
    return Plan(
        resolution, tuple(width * m for m in up), tuple(width * m for m in down), discriminator_downs, context_at
    )


def _multipliers(
    call: str, option: str, given: Sequence[int] | None, known: dict[int, tuple[int, ...]], resolution: int
) -> tuple[int, ...]:
    if given is None:
        if resolution not in known:
            raise OptionError(
                f"{call}: there are default widths for {sorted(known)} pixels, not for {resolution}; give {option}"
            )
        return known[resolution]
    check_counts(call, option, given, example=known[64])
    return tuple(given)
