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


def expected(ham, x, bases, steps, beta=BETA):
    """float64, plain torch   ->   D, C, D C, and CD's projector, transposed"""
    options = {"beta": beta} if ham == "cd" else {}
    ham = hb.hams[ham](rank=bases.shape[2], temperature=TEMPERATURE, **options)
    solution = hb.decompose(x.double(), ham, steps=steps, bases=bases.double(), backend="plain")
    return solution.bases, solution.codes.mT, solution.reconstruction, ridge_projector(solution.bases, beta).mT


def read_out(x, into, out, more, codes, y):
    """In place of `launch_readout`: what `readout_kernel` computes, in plain torch."""
    products = x.float().mT @ into
    codes.copy_(products)
    if y is not None:
        y.copy_(out @ products.mT)


def solve(
    ham, b, d, n, r, steps, programs,
    *, images=None, channels_last=False, padded=False, dtype=torch.float32, product=True, beta=BETA,
    modify_input=lambda x: None, launcher=None,
):  # fmt: skip
    """->   x, bases, and the result: D, C, D C, and for CD what the gradient needs"""
    launcher = launcher or Emulated()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(b, n, d, generator=generator).mT if channels_last else torch.randn(b, d, n, generator=generator)
    x, bases = x.bfloat16(), normalize(torch.randn(b, d, r, generator=generator), dim=1)
    x = pad_rows(x) if padded else x
    modify_input(x)
    before = x.clone(), bases.clone()
    grid = StreamingGrid(128 if d <= 128 else 256 if d <= 256 else 512, 64 if r <= 64 else 128, programs, images or b)
    counters = torch.zeros(b, common.COUNTERS_PER_IMAGE, dtype=torch.int32)
    with contextlib.ExitStack() as stack:
        for module, name, stand_in in (
            *((module, "streaming_grid", lambda *_: grid) for module in (vq, cd)),
            (cosine, "launch", launcher),
            (common, "launch_readout", read_out),
        ):
            stack.enter_context(mock.patch.object(module, name, stand_in))
        kernel, option = (vq, 0.0) if ham == "vq" else (cd, beta)  # constant_norms, or beta
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
    assert getattr(launcher, "shared", 0) <= cosine.streaming_bytes(grid.D, grid.R)
    if isinstance(launcher, Emulated):
        copies = (n % 16 == 0 or padded) and not channels_last
        assert set(launcher.copies_async.get("cosine_streaming_kernel", ())) <= {copies}
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


@pytest.mark.parametrize("ham, sizes, options", CASES.values(), ids=CASES)
def test_values(ham, sizes, options):
    def modify_input(x):
        x[:, :, 17] = 0  # has no direction

    x, bases, actual = solve(ham, *sizes, modify_input=modify_input, **options)
    assert actual[1].dtype == options.get("dtype", torch.float32)
    assert (actual[2] is None) == (not options.get("product", True)) and (actual[3] is None) == (ham == "vq")
    assert actual[2] is None or actual[2].stride() == x.stride()
    rounded = 3e-3 if "dtype" in options else 5e-4
    references = expected(ham, x, bases, sizes[4], options.get("beta", BETA))
    for value, exact, most in zip(actual, references, (2e-4, rounded, 4e-3, 2e-4), strict=True):
        assert value is None or error(value, exact) < most


@pytest.mark.parametrize("d, r, beta", [(500, 64, 0.1), (200, 100, 0.01)])
def test_ridge_kernel_matches_torch(d, r, beta):
    """Nearly equal bases, one of them zero."""
    generator = torch.Generator().manual_seed(0)
    moved = torch.randn(2, d, 1, generator=generator) + 0.3 * torch.randn(2, d, r, generator=generator)
    moved[:, :, 3] = 0
    launcher = Emulated()
    with mock.patch.object(cosine, "launch", launcher):
        unit, actual = cosine.launch_ridge_projector(
            moved, beta, StreamingGrid(512 if d > 256 else 256, 64 if r <= 64 else 128, 1, 2)
        )
    exact = normalize_columns(moved.double())
    assert error(unit, exact) < 1e-6
    assert error(actual, torch.linalg.solve(exact.mT @ exact + beta * torch.eye(r), exact.mT).mT) < 2e-4


@pytest.mark.parametrize("n, channels_last", [(208, False), (131, False), (131, True)])
def test_equal_bits_for_any_program_order(n, channels_last):
    def outputs(order):
        return solve("vq", 2, 100, n, 20, 1, 2, channels_last=channels_last, launcher=Emulated(order))[2][:3]

    first = outputs(list)
    for order in (lambda left: left[::-1], first_program_first()):
        assert all(torch.equal(a, b) for a, b in zip(outputs(order), first, strict=True))


def test_almost_zero_inputs():
    """Centroids so short that the eps of their length counts, before and after a step."""
    x, bases, actual = solve("cd", 1, 128, 112, 20, 2, 1, modify_input=lambda x: x.mul_(1e-7))
    references = expected("cd", x, bases, 2, BETA)
    assert error(actual[0], references[0]) < 2e-4 and references[0].norm(dim=1).min() < 0.5


@pytest.mark.parametrize("ham", ["vq", "cd"])
def test_nan_in_one_column_spreads_to_the_whole_output(ham):
    def modify_input(x):
        x[0, 3, 70] = torch.nan

    actual = solve(ham, 2, 128, 112, 20, 1, 1, modify_input=modify_input)[2]
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
        assert find_lines(text, opcode)[which]
        return remove_lines(text, *find_lines(text, opcode)[which])

    with pytest.raises(Race, match=seen):
        solve("vq", 1, 256, 192, 64, 1, 1, launcher=Emulated(edit=edit))


@pytest.mark.parametrize("ham", ["vq", "cd"])
def test_the_block_uses_streaming_kernels(ham, monkeypatch):
    launcher = Emulated()
    for module in (vq, cd):
        monkeypatch.setattr(module, "streaming_grid", lambda *_: StreamingGrid(128, 64, 2, 2))
    monkeypatch.setattr(cosine, "launch", launcher)
    monkeypatch.setattr(common, "launch_readout", read_out)
    generator = torch.Generator().manual_seed(0)
    z, bases = torch.randn(2, 100, 131, generator=generator).bfloat16(), torch.randn(2, 100, 20, generator=generator)
    wide = pad_rows(z)._base
    counters = torch.zeros(2, common.COUNTERS_PER_IMAGE, dtype=torch.int32)
    options = (TEMPERATURE, 0.0 if ham == "vq" else BETA)  # of VQ: whether norms are constant
    solution = block.solve_ham(wide, 131, ham, options, bases, 2, keep=True, counters=counters)
    assert set(launcher.copies_async["cosine_streaming_kernel"]) == {True}  # n is odd, and rows are padded
    assert solution.codes.dtype == torch.bfloat16  # what the kernel after them multiplies with
    assert solution.slope.shape == (bases.shape if ham == "cd" else (0,))
    references = expected(ham, z, bases, 2)
    assert error(solution.bases, references[0]) < 2e-4 and error(solution.codes, references[1]) < 3e-3
