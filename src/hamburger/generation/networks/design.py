"""Map sizes and channels of a generator and a discriminator, and the position of their context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hamburger.contexts.common import check_counts
from hamburger.errors import OptionError, check_count

FIRST_SIZE = 4  # a generator's first map is 4 x 4

# Channels in units of `width`. At 128 pixels those of all papers here; at 64 those of BigGAN and at 32 those of SNGAN
# on CIFAR, both from memory. None of the papers compares contexts at these sizes.
GENERATOR = {128: (16, 16, 8, 4, 2, 1), 64: (16, 16, 8, 4, 2), 32: (4, 4, 4, 4)}
DISCRIMINATOR = {128: (1, 2, 4, 8, 16, 16), 64: (1, 2, 4, 8, 16), 32: (2, 2, 2, 2)}
DOWNS = {128: 5, 64: 4, 32: 2}
CONTEXT_AT = {128: 32, 64: 16, 32: 16}


@dataclass(frozen=True)
class GanPlan:
    """Channels of the generator's first map and up-blocks, and of the discriminator's blocks, of which the first
    `downs` halve the map."""

    resolution: int
    generator: tuple[int, ...]
    discriminator: tuple[int, ...]
    downs: int
    context_at: int

    @property
    def generator_context_block(self) -> int:
        """Index of the up-block whose output is `context_at` wide."""
        return (self.context_at // FIRST_SIZE).bit_length() - 2

    @property
    def discriminator_context_block(self) -> int:
        """Index of the first block whose output is `context_at` wide."""
        return (self.resolution // self.context_at).bit_length() - 2


def plan_gan(
    call: str,
    *,
    resolution: int,
    width: int,
    generator_multipliers: Sequence[int] | None,
    discriminator_multipliers: Sequence[int] | None,
    discriminator_downs: int | None,
    context_at: int | None,
) -> GanPlan:
    """The plan for these options of `create_gan`, with the defaults of the resolution."""
    check_count(call, "resolution", resolution, least=4 * FIRST_SIZE)
    check_count(call, "width", width, least=1)
    if resolution & (resolution - 1):
        raise OptionError(f"{call}: resolution must be a power of two, got {resolution}; 32, 64 and 128 have defaults")
    ups = (resolution // FIRST_SIZE).bit_length() - 1
    up = _multipliers(call, "generator_multipliers", generator_multipliers, GENERATOR, resolution)
    down = _multipliers(call, "discriminator_multipliers", discriminator_multipliers, DISCRIMINATOR, resolution)
    if len(up) != ups + 1:
        raise OptionError(
            f"{call}: resolution {resolution} takes {ups + 1} generator_multipliers, one for the map of {FIRST_SIZE} x "
            f"{FIRST_SIZE} and one for each of {ups} up-blocks, got {len(up)}: {up}"
        )
    if discriminator_downs is None:
        default = discriminator_multipliers is None
        discriminator_downs = DOWNS[resolution] if default else min(len(down), ups)
    check_count(call, "discriminator_downs", discriminator_downs, least=1)
    most = min(len(down), ups + 1)
    if discriminator_downs > most:
        raise OptionError(
            f"{call}: discriminator_downs must be at most {most} for {len(down)} blocks at resolution {resolution}, "
            f"got {discriminator_downs}"
        )
    sizes = [resolution >> i for i in range(1, discriminator_downs + 1) if resolution >> i > FIRST_SIZE]
    if context_at is None:
        usual = CONTEXT_AT.get(resolution, resolution // 4)
        context_at = usual if usual in sizes else sizes[-1]
    if context_at not in sizes:
        raise OptionError(
            f"{call}: context_at must be the size of a map after a block of both networks, one of {sizes}, got "
            f"{context_at!r}"
        )
    return GanPlan(
        resolution, tuple(width * m for m in up), tuple(width * m for m in down), discriminator_downs, context_at
    )


def _multipliers(
    call: str, option: str, given: Sequence[int] | None, defaults: dict[int, tuple[int, ...]], resolution: int
) -> tuple[int, ...]:
    if given is None:
        if resolution not in defaults:
            raise OptionError(
                f"{call}: there are default widths for {sorted(defaults)} pixels, not for {resolution}; give {option}"
            )
        return defaults[resolution]
    check_counts(call, option, given, example=defaults[64])
    return tuple(given)
