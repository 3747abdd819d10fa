"""Tile sizes and grids: pure functions of the sizes, so that equal calls run equal programs. Imports no Triton."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

# Programs to aim for in a pass over positions: about two for each multiprocessor of a large gpu. A constant rather
# than a question to the device: the number of partial sums decides the last bits of a result.
TARGET_PROGRAMS = 264

# A program that updates codes holds all r of its columns; beyond this a multiprocessor has no room for its tiles.
MAX_RANK = 512


# Numbers that a program of four warps adds up from several partial sums in one go.
READ_AT_ONCE = 8192


class TileSizes(NamedTuple):
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


def tile_sizes(d: int, n: int, r: int, dtype: torch.dtype) -> TileSizes:
    """Tiles for x: b d n of that dtype and rank r."""
    padded = max(16, power_of_two(r))
    wide = dtype == torch.float32
    columns = max(16, min(64 if wide else 128, 8192 // padded))
    depth = min(padded, 64)
    return TileSizes(
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


def split_positions(n: int, tiles: int, step: int) -> tuple[int, int]:
    """Cut n positions into parts, each a multiple of `step` long, where `tiles` programs share a part.

    ->   the length of a part, their number
    """
    wanted = max(1, min(TARGET_PROGRAMS // tiles, cdiv(n, step)))
    length = cdiv(cdiv(n, wanted), step) * step
    return length, cdiv(n, length)


# -- resident: a whole solve is on the GPU at once ---------------------------------------------------------------------


HOPPER = (9, 0)  # whose matrix units take their operands from shared memory
DRIVER_SHARED_BYTES = 1024  # bytes of shared memory that the driver keeps for itself
RANKS = (64, 128)
# Programs for an image: each waits for the partial sums of all others; at n = 8,192 half as many with twice the columns
# are faster.
MAX_NARROW_PROGRAMS = 64

T = TypeVar("T")
ResidentBytes = Callable[[int, int, int], int]  # D, R, BN -> bytes of shared memory, which every ham counts for itself


class ResidentGrid(NamedTuple):
    """How a solve is cut: `programs` for each image, each with BN columns; d and r padded to D and R."""

    D: int
    R: int
    BN: int
    programs: int


class GpuProperties(NamedTuple):
    capability: tuple[int, int]
    processors: int
    shared: int  # bytes that one program can have


def resident_grid(x: Tensor, r: int, needs: ResidentBytes) -> ResidentGrid | None:
    """x: b d n   ->   how to solve it in one launch, or None where it does not fit or the GPU is of another kind."""
    if x.dtype != torch.bfloat16 or not x.is_cuda or not has_gluon():
        return None
    b, d, n = x.shape
    return fit_resident(b, d, n, r, gpu_properties(x.get_device()), needs)


def fit_resident(b: int, d: int, n: int, r: int, gpu: GpuProperties, needs: ResidentBytes) -> ResidentGrid | None:
    if gpu.capability != HOPPER or r > RANKS[-1] or d > 512:
        return None
    D, R = max(128, power_of_two(d)), max(RANKS[0], power_of_two(r))
    for BN, most in ((64, MAX_NARROW_PROGRAMS), (128, gpu.processors)):
        programs = cdiv(n, BN)
        if programs <= most and b * programs <= gpu.processors and needs(D, R, BN) + DRIVER_SHARED_BYTES <= gpu.shared:
            return ResidentGrid(D, R, BN, programs)
    return None


_devices_without_cooperative: set[int] = set()  # devices


def try_cooperative(solve: Callable[[], T], x: Tensor) -> T | None:
    """`solve()`; None where the driver has no room for all programs at once, and then never again on that device.

    It knows of limits that the GPU's own numbers do not show, such as a partial sum of its processors.
    """
    if x.get_device() in _devices_without_cooperative:
        return None
    try:
        return solve()
    except RuntimeError as error:
        if "cooperative" not in str(error):
            raise
        _devices_without_cooperative.add(x.get_device())
        return None


@functools.cache
def gpu_properties(index: int) -> GpuProperties:
    found = torch.cuda.get_device_properties(index)
    return GpuProperties((found.major, found.minor), found.multi_processor_count, found.shared_memory_per_block_optin)


@functools.cache
def has_gluon() -> bool:
    """Whether Triton has the language of these kernels."""
    try:
        from hamburger.kernels.hopper import common  # noqa: F401
    except (ImportError, AttributeError, TypeError):  # an experimental part of Triton, which may move
        return False
    return True


# -- streaming: programs take tiles of columns in turn -----------------------------------------------------------------


BN = 64  # columns of a tile: more would leave no room for another one next to it, or no registers next to the sums
MAX_IMAGES = 65_535  # rows of a grid

StreamingBytes = Callable[[int, int], int]  # D, R -> bytes of shared memory, which every ham counts for itself


class StreamingGrid(NamedTuple):
    """How a solve is cut: `programs` for each image, `images` in a launch; d and r padded to D and R."""

    D: int
    R: int
    programs: int
    images: int


def streaming_grid(x: Tensor, r: int, needs: StreamingBytes) -> StreamingGrid | None:
    """x: b d n   ->   how to solve it with one pass per step, or None where the GPU is of another kind."""
    if x.dtype != torch.bfloat16 or not x.is_cuda or not has_gluon():
        return None
    b, d, n = x.shape
    return fit_streaming(b, d, n, r, gpu_properties(x.get_device()), needs)


def fit_streaming(b: int, d: int, n: int, r: int, gpu: GpuProperties, needs: StreamingBytes) -> StreamingGrid | None:
    if gpu.capability != HOPPER or r > RANKS[-1] or d > 512 or b > MAX_IMAGES:
        return None
    D, R = max(128, power_of_two(d)), max(RANKS[0], power_of_two(r))
    if needs(D, R) + DRIVER_SHARED_BYTES > gpu.shared:
        return None
    # one program on a multiprocessor: at d = 512 shared memory has room for no more, and all of a launch wait for
    # each other
    images = cdiv(b, cdiv(b, gpu.processors))
    return StreamingGrid(D, R, min(gpu.processors // images, cdiv(n, BN)), images)


def can_copy_async(x: Tensor) -> bool:
    """Whether rows of x can be copied 16 bytes at a time, and Triton sees it: it asks for multiples of 16."""
    near = x.stride(2) == 1 and x.data_ptr() % 16 == 0
    return near and not any(size % 16 for size in (x.shape[2], x.stride(1), x.stride(0)))
