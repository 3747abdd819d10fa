"""Soft k-means in one launch, as VQ and CD share it on the host: its cut, its memory, its constants."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger.ops import launch
from hamburger.ops.tiles import power_of_two
from hamburger.ops.wave import Wave

SHARES = 1 << 21  # numbers, of all programs: so many are written in half the bytes


class Memory(NamedTuple):
    """What a solve writes beside its results: see `cosine_wave_kernels.Exchange`."""

    copy: Tensor
    shares: Tensor
    scratch: Tensor
    counters: Tensor


def shared_bytes(D: int, R: int, BN: int) -> int:
    """X and two stages of both halves of D, whose place C takes; or for the product C and two stages of D and of Y.

    And what changes of layout need.
    """
    stage = 8192 // R
    return 2 * max(D * BN + 4 * stage * R, BN * R + 2 * stage * (R + BN)) + 8192


def owners(wave: Wave) -> int:
    """Programs that update D: a power of two, and 4 rows for each at the least."""
    return 1 << (min(wave.programs, wave.D // 4).bit_length() - 1)


def shares_dtype(wave: Wave) -> torch.dtype:
    """What a share of X C^T is written in: float32 where that costs no time, and for a high rank, whose columns of D
    are closer to each other."""
    many = wave.programs * wave.D * wave.R >= SHARES
    return torch.int16 if many and wave.R == 64 else torch.float32


def memory(b: int, wave: Wave, device: torch.device, counts: Tensor | None = None) -> Memory:
    """counts: `launch.counters`, where somebody has them already"""
    D, R, programs = wave.D, wave.R, wave.programs
    return Memory(
        torch.empty(b, 2, D, R, dtype=torch.bfloat16, device=device),
        torch.empty(b, programs, D, R, dtype=shares_dtype(wave), device=device),
        torch.empty(b, programs * R + programs * D + D // 4 * R, dtype=torch.float32, device=device),
        launch.counters(b, device) if counts is None else counts,
    )


def constants(x: Tensor, wave: Wave) -> dict[str, Any]:
    """Of the kernels, and of their launch."""
    return {
        "D": wave.D,
        "R": wave.R,
        "BN": wave.BN,
        "OWNERS": owners(wave),
        "MOST": power_of_two(wave.programs),
        "N_FAST": x.stride(2) == 1,
        "num_warps": 8,
        "launch_cooperative_grid": True,
    }
