"""The bread of many columns, as it is compiled for the card, emulated on a CPU: its values, and its races."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from hamburger.kernels import block_launches, launcher, tiling

if not tiling.has_gluon():
    pytest.skip("Triton or its Gluon is missing", allow_module_level=True)

from emulated import Emulated
from ptx import Race
from resident_solves import error, poisoned_memory
from test_resident_nonfinite import hasty, places, without

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(launcher.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]


@pytest.fixture(autouse=True)
def poisoned():
    with poisoned_memory():
        yield


def solve(b, c, n, d, programs, *, bias=True, rectify=True, more=None, transposed=False, spoil=None, emulated=None):
    """-> what came, and what should have come.   more: "own" memory, or "z" itself"""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(b, c, n, generator=draw).bfloat16()
    weight = torch.randn(d, c, generator=draw).bfloat16()
    weight = weight.mT.contiguous().mT if transposed else weight
    shift = torch.randn(d, generator=draw) if bias else None
    added = torch.randn(b, d, n, generator=draw).bfloat16() * c**0.5 if more else None
    if spoil:
        x[spoil] = float("nan")
    wanted = weight.double() @ x.double()
    wanted += 0 if shift is None else shift.double()[:, None]
    wanted += 0 if added is None else added.double()
    z = added if more == "z" else torch.empty(b, d, n, dtype=torch.bfloat16)
    with mock.patch.object(block_launches, "launch", emulated or Emulated()):
        block_launches.launch_gemm(
            x, weight, shift, added, z, (-(-d // block_launches.GEMM_ROWS), programs), rectify=rectify
        )
    return z, wanted.relu() if rectify else wanted


CASES = {
    "several tiles of a program": ((1, 128, 320, 128, 2), {}),
    "all padded": ((1, 100, 208, 200, 1), {}),
    "more images than programs": ((3, 72, 80, 72, 2), {}),
    "more programs than an image has tiles": ((5, 72, 80, 72, 3), {}),
    "the way back": ((1, 128, 320, 128, 2), {"bias": False, "rectify": False, "more": "own", "transposed": True}),
    "in place": ((2, 100, 144, 136, 1), {"bias": False, "rectify": False, "more": "z", "transposed": True}),
    "everything at once, c not a multiple of 8": ((1, 129, 208, 72, 1), {"more": "z"}),
    "the paper's c": ((1, 512, 208, 128, 1), {}),
}


@pytest.mark.parametrize("sizes, more", CASES.values(), ids=CASES)
def test_values(sizes, more):
    z, wanted = solve(*sizes, **more)
    assert error(z, wanted) < 3e-3


def test_nan_stays():
    z, wanted = solve(1, 128, 192, 128, 1, spoil=(0, 5, 70))
    assert z[0, :, 70].isnan().all() and z.isnan().sum() == 128 and not wanted[0, 0, 71].isnan()


def test_the_same_bits_whatever_the_order_of_the_programs():
    def output(order):
        return solve(2, 72, 144, 136, 2, more="z", emulated=Emulated(order))[0]

    first = output(list)
    for order in (lambda left: left[::-1], hasty()):
        assert torch.equal(output(order), first)


@pytest.mark.parametrize(
    "opcode, which, seen",
    [
        ("cp.async.wait_group", slice(0, 1), "cp.async that nobody"),
        ("cp.async.wait_group", slice(1, -1), "cp.async that nobody"),
        ("fence.proxy.async", slice(None), "not written, fenced"),
        ("wgmma.wait_group", slice(None), "in flight"),
    ],
)
def test_what_is_missing_in_the_text_is_seen(opcode, which, seen):
    """Else what the emulator says of the text as it is would mean little."""

    def edit(text):
        assert places(text, opcode)[which]
        return without(text, *places(text, opcode)[which])

    with pytest.raises(Race, match=seen):
        solve(1, 128, 320, 128, 1, more="z", emulated=Emulated(edit=edit))
