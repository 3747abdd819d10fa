"""Roofline of a ham: the larger of its arithmetic at the rate of a matrix product and its bytes at that of a copy.

Both rates are measured in the same run, not taken from a data sheet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hamburger_lab.bench.timing import time_call

# Side of the square product and bytes of the copy: large enough to reach the device's rates.
EDGE = {"cpu": 1024, "cuda": 8192}
COPY = {"cpu": 2**27, "cuda": 2**30}
TRIES = 5


@dataclass(frozen=True)
class DeviceRates:
    tflops: float  # 10^12 floating point operations a second, two for a multiply-add
    gbs: float  # 10^9 bytes a second, read and written

    @classmethod
    def here(cls, device: str, dtype: torch.dtype) -> DeviceRates:
        """Measure both rates, the best of a few tries; torch's TF32 flags apply."""
        edge, size = EDGE[device], COPY[device]
        a, b = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        product = _best(lambda: a @ b, device)
        copy = _best(lambda: target.copy_(source), device)
        return cls(tflops=2 * edge**3 / product / 1e9, gbs=2 * size / copy / 1e6)


def _best(run: Callable[[], object], device: str) -> float:
    """Return the shortest time in milliseconds."""
    return min(time_call(run, (), device) for _ in range(TRIES + 1))


def multiply_adds(ham: str, mode: str, b: int, d: int, n: int, r: int, steps: int) -> int:
    """Return the multiply-adds of a solve with D C written; "train" adds the one-step gradient."""
    main, small = b * n * d * r, b * r * r * (n + d)
    if ham == "nmf":
        forward, backward = main * (2 * steps + 3) + small * (2 * steps + 1), 2 * main + small
    elif ham == "vq":
        forward, backward = main * (2 * steps + 2), 3 * main  # the codes are computed again
    else:
        forward, backward = main * (2 * steps + 2) + b * r * r * (d + r), 2 * main
    return forward + (backward if mode == "train" else 0)


def least_bytes(ham: str, mode: str, b: int, d: int, n: int, r: int, itemsize: int) -> int:
    """Return the bytes to read X and write D C once; "train" adds both gradients and what the backward pass needs.

    NMF's codes are written and read in float32 between forward and backward. VQ reads X again instead.
    """
    x, codes = b * d * n * itemsize, b * r * n * 4
    if mode != "train":
        return 2 * x
    saved_bytes = {"nmf": 2 * codes, "vq": x}.get(ham, 0)
    return 4 * x + saved_bytes


def floor_ms(
    ham: str, mode: str, b: int, d: int, n: int, r: int, steps: int, itemsize: int, rates: DeviceRates
) -> float:
    """Return the least time in milliseconds."""
    arithmetic = 2 * multiply_adds(ham, mode, b, d, n, r, steps) / rates.tflops / 1e9
    memory = least_bytes(ham, mode, b, d, n, r, itemsize) / rates.gbs / 1e6
    return max(arithmetic, memory)
