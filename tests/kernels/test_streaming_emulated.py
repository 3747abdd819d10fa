"""The streaming NMF kernel, compiled for Hopper and emulated on a CPU: values and races."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch.nn.functional import normalize

from hamburger.kernels import common, nmf_hopper, tiling
from hamburger.kernels.tiling import StreamingGrid

if not tiling.has_gluon():
    pytest.skip("Triton or its Gluon is missing", allow_module_level=True)

from emulated import Emulated
from ptx import Race
from resident_solves import EPS, error, pad_rows, poisoned_memory
from test_resident_emulated import reference
from test_resident_nonfinite import find_lines, first_program_first, remove_lines

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(common.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]


@pytest.fixture(autouse=True)
def poisoned():
    with poisoned_memory():
        yield


def solve(
    b, d, n, r, steps, programs,
    *, images=None, channels_last=False, padded=False, dtype=torch.float32, keep=True, product=True, launcher=None,
):  # fmt: skip
    """->   x, bases, and the result: D, C, D C, and what the gradient needs"""
    launcher = launcher or Emulated()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(b, n, d, generator=generator).mT if channels_last else torch.randn(b, d, n, generator=generator)
    x, bases = x.abs().bfloat16(), normalize(torch.randn(b, d, r, generator=generator).abs(), dim=1)
    x = pad_rows(x) if padded else x
    before = x.clone(), bases.clone()
    grid = StreamingGrid(128 if d <= 128 else 256 if d <= 256 else 512, 64 if r <= 64 else 128, programs, images or b)
    counters = torch.zeros(b, common.COUNTERS_PER_IMAGE, dtype=torch.int32)
    with mock.patch.object(nmf_hopper, "launch", launcher):
        result = nmf_hopper.solve_streaming(
            x, bases, grid, steps, EPS, keep=keep, product=product, dtype=dtype, padded=padded, counters=counters
        )
    assert torch.equal(x, before[0]) and torch.equal(bases, before[1])
    assert launcher.shared <= nmf_hopper.streaming_bytes(grid.D, grid.R)
    assert ("cp.async" in launcher.compiled.asm["ptx"]) == ((n % 16 == 0 or padded) and not channels_last)
    return x, bases, result


CASES = {
    "several tiles of a program": ((1, 128, 320, 64, 2, 2), {}),
    "no step": ((1, 128, 100, 64, 0, 2), {}),
    "two images, all padded": ((2, 100, 208, 20, 2, 2), {}),
    "channels last, codes in bfloat16": ((1, 128, 200, 64, 1, 2), {"channels_last": True, "dtype": torch.bfloat16}),
    "more parts than an update adds up": ((1, 128, 400, 64, 1, 6), {"keep": False}),
    "rank 100": ((1, 256, 192, 100, 1, 2), {}),
    "three images, two in a launch, odd n": ((3, 100, 131, 20, 3, 2), {"images": 2}),
    "odd n, padded": ((2, 100, 131, 20, 2, 2), {"padded": True, "product": False}),
    "programs with two units of D and with one": ((1, 128, 640, 64, 2, 10), {}),
    "d = 512": ((1, 512, 176, 64, 1, 1), {"product": False}),
}


@pytest.mark.parametrize("sizes, options", CASES.values(), ids=CASES)
def test_values(sizes, options):
    x, bases, (d, c, y, ratio) = solve(*sizes, **options)
    assert c.dtype == options.get("dtype", torch.float32)
    assert (ratio is None) == (not options.get("keep", True)) and (y is None) == (not options.get("product", True))
    assert y is None or y.stride() == x.stride()
    for i in range(len(x)):
        expected = reference(x[i], bases[i], sizes[4])
        assert max(map(error, (d[i], c[i].T), expected)) < 5e-3
        assert y is None or error(y[i], expected[2]) < 5e-3
        assert ratio is None or error(ratio[i].T, expected[3]) < 5e-3


def test_equal_bits_for_any_program_order():
    def outputs(order):
        return solve(2, 100, 200, 20, 1, 2, launcher=Emulated(order))[2]

    first = outputs(list)
    for order in (lambda left: left[::-1], first_program_first()):
        assert all(torch.equal(a, b) for a, b in zip(outputs(order), first, strict=True))


@pytest.mark.parametrize(
    "opcode, which, seen",
    [
        ("cp.async.wait_group", slice(0, 1), "pending cp.async"),
        ("cp.async.wait_group", slice(1, None), "pending cp.async"),
        ("fence.proxy.async", slice(0, 1), "not written, fenced"),
        ("fence.proxy.async", slice(1, None), "not written, fenced"),  # newer compilers add some of their own
        ("wgmma.wait_group", slice(None), "in flight"),
    ],
)
def test_emulator_detects_removed_synchronisation(opcode, which, seen):
    """Shows that the emulator would find a fault."""

    def edit(text):
        assert find_lines(text, opcode)[which]
        return remove_lines(text, *find_lines(text, opcode)[which])

    with pytest.raises(Race, match=seen):
        solve(1, 128, 192, 64, 2, 1, launcher=Emulated(edit=edit))
