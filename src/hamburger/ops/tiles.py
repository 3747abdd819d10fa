"""How a fused solve is cut into tiles: a pure function of the sizes, so that equal calls run equal programs."""

from __future__ import annotations

from typing import NamedTuple

import torch

# Programs to aim for in a pass over positions: about two for each multiprocessor of a large card. A constant rather
# than a question to the device: the number of partial sums decides the last bits of a result.
PROGRAMS = 264

# A program that updates codes holds all r of its columns; beyond this a multiprocessor has no room for its tiles.
MOST_RANK = 512


# Numbers that a program of four warps adds up from several partial sums in one go.
READ_AT_ONCE = 8192


class Blocks(NamedTuple):
    """Sizes of tiles, all powers of two: what a program holds of each axis, and the warps that hold it."""

    R: int  # all of r, padded: a program that updates codes owns whole columns
    BN: int  # columns in such a program
    BD: int  # rows of D that it reads at a time
    BK: int  # rows of D^T D that it reads at a time
    warps: int
    SD: int  # a tile of a sum over positions: rows,
    SR: int  # columns,
    SN: int  # and positions at a time
    sum_warps: int
    FD: int  # a tile of an update of D: rows,
    FR: int  # columns,
    FK: int  # the depth of its products,
    FP: int  # partial sums of its own entries that are read at once,
    FPK: int  # and of what it multiplies with
    GD: int  # a tile of D^T D: the depth of its products,
    FG: int  # rows and columns


def blocks(d: int, n: int, r: int, dtype: torch.dtype) -> Blocks:
    """Tiles for x: b d n of that dtype and rank r."""
    padded = max(16, power_of_two(r))
    wide = dtype == torch.float32
    columns = max(16, min(64 if wide else 128, 8192 // padded))
    depth = min(padded, 64)
    return Blocks(
        R=padded,
        BN=columns,
        BD=32 if wide or padded > 128 else 64,
        BK=min(padded, 32 if wide or padded > 128 else 64),
        warps=4 if padded <= 64 else 8,
        SD=64 if wide or d <= 64 else 128,
        SR=min(padded, 64),
        SN=32 if wide else 64,
        sum_warps=4 if wide or d <= 64 else 8,
        FD=16,
        FR=16,
        FK=depth,
        FP=READ_AT_ONCE // 256,
        FPK=max(1, READ_AT_ONCE // (16 * depth)),
        GD=64 if wide else 128,
        FG=min(padded, 32),
    )


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below count."""
    return 1 << (count - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def split(n: int, tiles: int, step: int) -> tuple[int, int]:
    """Cut n positions into parts, each a multiple of `step` long, where `tiles` programs share a part.

    ->   the length of a part, their number
    """
    wanted = max(1, min(PROGRAMS // tiles, cdiv(n, step)))
    length = cdiv(cdiv(n, wanted), step) * step
    return length, cdiv(n, length)
