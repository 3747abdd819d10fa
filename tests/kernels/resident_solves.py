"""The launch code of the resident kernels on a CPU, with another function in place of the launch."""

from __future__ import annotations

import contextlib
import math
import random
from unittest import mock

import torch
from torch.nn.functional import normalize

from hamburger.kernels import common, nmf_hopper
from hamburger.kernels.tiling import GpuProperties, fit_resident

H200 = GpuProperties((9, 0), processors=132, shared=232_448)
SMALL = GpuProperties((9, 0), processors=4, shared=232_448)  # whose programs have to take more columns
EPS, TEMPERATURE, BETA = 1e-6, 0.01, 0.1


@contextlib.contextmanager
def poisoned_memory():
    """Memory that the launch code does not fill is NaN."""
    torch.set_deterministic_debug_mode("error")
    assert torch.empty(8).isnan().all()
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def pad_rows(x):
    """x (b d n) in memory whose rows have further zeros, up to a multiple of 16 entries."""
    b, d, n = x.shape
    return torch.zeros(b, d, -(-n // 16) * 16, dtype=x.dtype)[..., :n].copy_(x)


def solve(
    b, d, n, r, steps, launcher,
    *, gpu=H200, channels_last=False, padded=False, dtype=torch.float32, keep=True, eps=EPS,
    modify_input=lambda x: None,
):  # fmt: skip
    """NMF by the resident kernel.   ->   x, bases, and the result: D, C, D C and Q. modify_input: changes x first."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(b, n, d, generator=generator).mT if channels_last else torch.randn(b, d, n, generator=generator)
    bases = torch.randn(b, d, r, generator=generator).abs()
    x, bases = x.abs().bfloat16(), normalize(bases, dim=1)
    x = pad_rows(x) if padded else x
    modify_input(x)
    before, grid = (x.clone(), bases.clone()), fit_resident(b, d, n, r, gpu)

    def zeros(b, device):  # by a kernel of another kind
        return torch.zeros(b, common.COUNTERS_PER_IMAGE, dtype=torch.int32)

    with mock.patch.object(nmf_hopper, "launch", launcher), mock.patch.object(common, "zero_counters", zeros):
        result = nmf_hopper.solve_resident(
            x, bases, grid, steps, eps, keep=keep, product=True, dtype=dtype, padded=padded
        )
    assert all(
        torch.equal(*pair) for pair in zip((x.nan_to_num(), bases), (before[0].nan_to_num(), before[1]), strict=True)
    )
    return x, bases, result


def error(actual, expected):
    """Relative, and infinite where something is NaN."""
    error = float((actual.double() - expected).norm() / expected.norm())
    return error if math.isfinite(error) else math.inf


def at_random(seed):
    """Some of the programs have a turn, in any order."""
    generator = random.Random(seed)
    return lambda left: generator.sample(left, generator.randint(1, len(left)))
