"""Tile sizes and grids: pure functions of the sizes, so that equal calls run equal programs. Imports no Triton."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

# Programs to aim for in a pass over positions: about two per multiprocessor of a large GPU. A constant, not a property
# of the device, because the number of partial sums decides the last bits of a result.
TARGET_PROGRAMS = 264
MAX_RANK = 512  # a program that updates codes holds all r of its columns; shared memory has no room for more
READ_AT_ONCE = 8192  # entries of partial sums that a program of four warps loads at once


class TileSizes(NamedTuple):
    """Tile sizes of the tiled kernels, all powers of two, and numbers of warps."""

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
    """Split n positions into parts whose length is a multiple of `step`; `tiles` programs work on each part.

    ->   the length of a part, the number of parts
    """
    target = max(1, min(TARGET_PROGRAMS // tiles, cdiv(n, step)))
    length = cdiv(cdiv(n, target), step) * step
    return length, cdiv(n, length)


# -- grids of the Hopper kernels ---------------------------------------------------------------------------------------


HOPPER = (9, 0)  # compute capability
DRIVER_SHARED_BYTES = 1024  # shared memory per program that the driver reserves
MAX_PADDED_RANK, MAX_CHANNELS = 128, 512
MAX_IMAGES = 65_535  # second axis of a CUDA grid
# Programs per image with 64 columns each; with more, 128 columns are faster: every program reads all partial sums.
MAX_NARROW_PROGRAMS = 64
BN = 64  # columns of a streaming tile: with more, the next tile would not fit into shared memory

T = TypeVar("T")


class GpuProperties(NamedTuple):
    capability: tuple[int, int]
    processors: int
    shared: int  # bytes of shared memory that one program can have


class ResidentGrid(NamedTuple):
    """`programs` for each image, each with BN columns; d and r are padded to D and R."""

    D: int
    R: int
    BN: int
    programs: int


class StreamingGrid(NamedTuple):
    """`programs` for each image, `images` in a launch; d and r are padded to D and R."""

    D: int
    R: int
    programs: int
    images: int


def resident_grid(x: Tensor, r: int) -> ResidentGrid | None:
    """The grid of the resident NMF kernel for x (b d n); None if x does not fit or the GPU is not a Hopper."""
    if not _has_hopper_kernels(x):
        return None
    b, d, n = x.shape
    return fit_resident(b, d, n, r, gpu_properties(x.get_device()))


def fit_resident(b: int, d: int, n: int, r: int, gpu: GpuProperties) -> ResidentGrid | None:
    if gpu.capability != HOPPER or r > MAX_PADDED_RANK or d > MAX_CHANNELS:
        return None
    D, R = _padded(d, r)
    for columns, most in ((64, MAX_NARROW_PROGRAMS), (128, gpu.processors)):
        programs = cdiv(n, columns)
        fits = resident_bytes(D, R, columns) + DRIVER_SHARED_BYTES <= gpu.shared
        if fits and programs <= most and b * programs <= gpu.processors:
            return ResidentGrid(D, R, columns, programs)
    return None


def resident_bytes(D: int, R: int, BN: int) -> int:
    """Shared memory of the resident NMF kernel: X, D, C and D^T D in bfloat16, and what changes of layout need."""
    return 2 * (D * BN + D * R + BN * R + R * R) + 8192


def streaming_grid(x: Tensor, r: int, shared_bytes: Callable[[int, int], int]) -> StreamingGrid | None:
    """The grid of a streaming kernel for x (b d n), or None. `shared_bytes(D, R)`: the shared memory that it needs."""
    if not _has_hopper_kernels(x):
        return None
    b, d, n = x.shape
    return fit_streaming(b, d, n, r, gpu_properties(x.get_device()), shared_bytes)


def fit_streaming(
    b: int, d: int, n: int, r: int, gpu: GpuProperties, shared_bytes: Callable[[int, int], int]
) -> StreamingGrid | None:
    if gpu.capability != HOPPER or r > MAX_PADDED_RANK or d > MAX_CHANNELS or b > MAX_IMAGES:
        return None
    D, R = _padded(d, r)
    if shared_bytes(D, R) + DRIVER_SHARED_BYTES > gpu.shared:
        return None
    # one program per multiprocessor: at d = 512 two do not fit, and all programs of a launch wait for each other
    images = cdiv(b, cdiv(b, gpu.processors))
    return StreamingGrid(D, R, min(gpu.processors // images, cdiv(n, BN)), images)


def row_width(x: Tensor, *, padded: bool) -> int:
    """How far rows of x may be read: where they are `padded`, zeros fill them up to the next row.   x: b d n"""
    return x.stride(1) if padded else x.shape[2]


def can_copy_async(x: Tensor, *, padded: bool = False) -> bool:
    """Whether rows of x can be copied 16 bytes at a time, in a way that Triton sees: it looks for multiples of 16."""
    contiguous_rows = x.stride(2) == 1 and x.data_ptr() % 16 == 0
    sizes = row_width(x, padded=padded), x.stride(1), x.stride(0)
    return contiguous_rows and not any(size % 16 for size in sizes)


def _padded(d: int, r: int) -> tuple[int, int]:
    return max(128, power_of_two(d)), max(64, power_of_two(r))


def _has_hopper_kernels(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.is_cuda and has_gluon()


@functools.cache
def gpu_properties(index: int) -> GpuProperties:
    gpu = torch.cuda.get_device_properties(index)
    return GpuProperties((gpu.major, gpu.minor), gpu.multi_processor_count, gpu.shared_memory_per_block_optin)


@functools.cache
def has_gluon() -> bool:
    """Whether this Triton has the Gluon language as the Hopper kernels use it."""
    try:
        from hamburger.kernels.hopper import common  # noqa: F401
    except (ImportError, AttributeError, TypeError):  # Gluon is experimental and may change
        return False
    return True
