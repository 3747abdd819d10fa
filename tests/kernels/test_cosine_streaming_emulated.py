"""The streaming VQ and CD kernels, compiled for Hopper and emulated on a CPU: values and races.

At the default temperature, where a softmax asks for more digits than bfloat16 has.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest
import torch
from torch.nn.functional import normalize

import hamburger as hb
from hamburger.kernels import block, cd, common, cosine, tiling, vq
from hamburger.kernels.tiling import StreamingGrid
from hamburger.linalg import normalize_columns, ridge_projector

if not tiling.has_gluon():
    pytest.skip("Triton or its Gluon is missing", allow_module_level=True)

from emulated import Emulated
from ptx import Race
from resident_solves import BETA, TEMPERATURE, error, pad_rows, poisoned_memory
from test_resident_nonfinite import hasty, places, without

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(common.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]


@pytest.fixture(autouse=True)
def poisoned():
    with poisoned_memory():
        yield


def expected(ham, x, bases, steps, beta=BETA):
    """float64, plain torch   ->   D, C, D C, and CD's projector, transposed"""
    more = {"beta": beta} if ham == "cd" else {}
    ham = hb.hams[ham](rank=bases.shape[2], temperature=TEMPERATURE, **more)
    solution = hb.decompose(x.double(), ham, steps=steps, bases=bases.double(), backend="plain")
    return solution.bases, solution.codes.mT, solution.reconstruction, ridge_projector(solution.bases, beta).mT


def read_out(x, into, out, more, codes, y):
    """What `readout_kernel` does."""
    products = x.float().mT @ into
    codes.copy_(products)
    if y is not None:
        y.copy_(out @ products.mT)


def solve(
    ham, b, d, n, r, steps, programs,
    *, images=None, channels_last=False, padded=False, dtype=torch.float32, product=True, beta=BETA,
    spoil=lambda x: None, start=None,
):  # fmt: skip
    """->   x, bases, and the result: D, C, D C, and for CD what the gradient needs"""
    start = start or Emulated()
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(b, n, d, generator=draw).mT if channels_last else torch.randn(b, d, n, generator=draw)
    x, bases = x.bfloat16(), normalize(torch.randn(b, d, r, generator=draw), dim=1)
    x = pad_rows(x) if padded else x
    spoil(x)
    before = x.clone(), bases.clone()
    cut = StreamingGrid(128 if d <= 128 else 256 if d <= 256 else 512, 64 if r <= 64 else 128, programs, images or b)
    counters = torch.zeros(b, common.COUNTERS_PER_IMAGE, dtype=torch.int32)
    with contextlib.ExitStack() as stack:
        for module, name, stand_in in (
            *((module, "streaming_grid", lambda *_: cut) for module in (vq, cd)),
            (cosine, "launch", start),
            (common, "launch_readout", read_out),
        ):
            stack.enter_context(mock.patch.object(module, name, stand_in))
        kernel, option = (vq, 0.0) if ham == "vq" else (cd, beta)
        result = kernel.solve_factors(
            x,
            bases,
            steps,
            TEMPERATURE,
            option,
            keep=True,
            product=product,
            dtype=dtype,
            padded=padded,
            counters=counters,
        )
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip((x, bases), before, strict=True))
    assert getattr(start, "shared", 0) <= cosine.streaming_bytes(cut.D, cut.R)
    return x, bases, result


CASES = {
    "vq, several tiles of a program": ("vq", (1, 128, 320, 64, 2, 2), {}),
    "vq, no step": ("vq", (1, 128, 112, 64, 0, 2), {}),
    "vq, two images, all padded": ("vq", (2, 100, 208, 20, 2, 2), {}),
    "vq, channels last, codes in bfloat16": (
        "vq", (1, 128, 200, 64, 1, 2), {"channels_last": True, "dtype": torch.bfloat16}
    ),
    "vq, rank 100": ("vq", (1, 256, 192, 100, 1, 2), {}),
    "cd, two images, all padded": ("cd", (2, 100, 208, 20, 2, 2), {}),
    "cd, more parts than an update adds up": ("cd", (1, 128, 400, 64, 1, 6), {"product": False}),
    "vq, three images, two in a launch, odd n": ("vq", (3, 100, 131, 20, 2, 2), {"images": 2}),
    "vq, odd n, padded": ("vq", (2, 100, 131, 20, 2, 2), {"padded": True, "product": False}),
    "cd, programs with few rows of D": ("cd", (1, 128, 640, 64, 2, 10), {}),
    "cd, no ridge": ("cd", (1, 128, 112, 8, 1, 1), {"beta": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("ham, sizes, more", CASES.values(), ids=CASES)
def test_values(ham, sizes, more):
    def spoil(x):
        x[:, :, 17] = 0  # has no direction

    x, bases, actual = solve(ham, *sizes, spoil=spoil, **more)
    assert actual[1].dtype == more.get("dtype", torch.float32)
    assert (actual[2] is None) == (not more.get("product", True)) and (actual[3] is None) == (ham == "vq")
    assert actual[2] is None or actual[2].stride() == x.stride()
    rounded = 3e-3 if "dtype" in more else 5e-4
    references = expected(ham, x, bases, sizes[4], more.get("beta", BETA))
    for value, exact, most in zip(actual, references, (2e-4, rounded, 4e-3, 2e-4), strict=True):
        assert value is None or error(value, exact) < most


@pytest.mark.parametrize("d, r, beta", [(500, 64, 0.1), (200, 100, 0.01)])
def test_ridge_kernel_matches_torch(d, r, beta):
    """Nearly equal bases, one of them zero."""
    draw = torch.Generator().manual_seed(0)
    moved = torch.randn(2, d, 1, generator=draw) + 0.3 * torch.randn(2, d, r, generator=draw)
    moved[:, :, 3] = 0
    start = Emulated()
    with mock.patch.object(cosine, "launch", start):
        unit, actual = cosine.launch_ridge_projector(
            moved, beta, StreamingGrid(512 if d > 256 else 256, 64 if r <= 64 else 128, 1, 2)
        )
    exact = normalize_columns(moved.double())
    assert error(unit, exact) < 1e-6
    assert error(actual, torch.linalg.solve(exact.mT @ exact + beta * torch.eye(r), exact.mT).mT) < 2e-4


@pytest.mark.parametrize("n, channels_last", [(208, False), (131, False), (131, True)])
def test_equal_bits_for_any_program_order(n, channels_last):
    def outputs(order):
        return solve("vq", 2, 100, n, 20, 1, 2, channels_last=channels_last, start=Emulated(order))[2][:3]

    first = outputs(list)
    for order in (lambda left: left[::-1], hasty()):
        assert all(torch.equal(a, b) for a, b in zip(outputs(order), first, strict=True))


def test_almost_zero_inputs():
    """Centroids so short that the eps of their length counts, before and after a step."""
    x, bases, actual = solve("cd", 1, 128, 112, 20, 2, 1, spoil=lambda x: x.mul_(1e-7))
    references = expected("cd", x, bases, 2, BETA)
    assert error(actual[0], references[0]) < 2e-4 and references[0].norm(dim=1).min() < 0.5


@pytest.mark.parametrize("ham", ["vq", "cd"])
def test_nan_in_one_column_spreads_to_the_whole_output(ham):
    def spoil(x):
        x[0, 3, 70] = torch.nan

    actual = solve(ham, 2, 128, 112, 20, 1, 1, spoil=spoil)[2]
    assert all(value is None or (value[0].isnan().all() and value[1].isfinite().all()) for value in actual)


@pytest.mark.parametrize(
    "opcode, which, seen",
    [
        ("cp.async.wait_group", slice(0, 1), "pending cp.async"),
        ("cp.async.wait_group", slice(1, 2), "pending cp.async"),  # the second piece
        ("fence.proxy.async", slice(0, 1), "not written, fenced"),
        ("fence.proxy.async", slice(1, None), "not written, fenced"),
        ("wgmma.wait_group", slice(None), "in flight"),
    ],
)
def test_emulator_detects_removed_synchronisation(opcode, which, seen):
    """Shows that the emulator would find a fault."""

    def edit(text):
        assert places(text, opcode)[which]
        return without(text, *places(text, opcode)[which])

    with pytest.raises(Race, match=seen):
        solve("vq", 1, 256, 192, 64, 1, 1, start=Emulated(edit=edit))


@pytest.mark.parametrize("ham", ["vq", "cd"])
def test_the_block_uses_them(ham, monkeypatch):
    start = Emulated()
    for module in (vq, cd):
        monkeypatch.setattr(module, "streaming_grid", lambda *_: StreamingGrid(128, 64, 2, 2))
    monkeypatch.setattr(cosine, "launch", start)
    monkeypatch.setattr(common, "launch_readout", read_out)
    draw = torch.Generator().manual_seed(0)
    z, bases = torch.randn(2, 100, 131, generator=draw).bfloat16(), torch.randn(2, 100, 20, generator=draw)
    wide = pad_rows(z)._base
    counters = torch.zeros(2, common.COUNTERS_PER_IMAGE, dtype=torch.int32)
    solution = block.solve_ham(wide, 131, ham, (TEMPERATURE, BETA), bases, 2, keep=True, counters=counters)
    assert start.compiled is not None
    assert solution.codes.dtype == torch.bfloat16  # what the kernel after them multiplies with
    assert solution.slope.shape == (bases.shape if ham == "cd" else (0,))
    references = expected(ham, z, bases, 2)
    assert error(solution.bases, references[0]) < 2e-4 and error(solution.codes, references[1]) < 3e-3
