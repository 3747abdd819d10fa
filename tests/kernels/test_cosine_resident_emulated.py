"""VQ and CD in one launch, as they are compiled for the card, emulated on a CPU: values, in any order of programs.

At the default temperature, where a softmax asks for more digits than bfloat16 has.
"""

from __future__ import annotations

import pytest
import torch

import hamburger as hb
from hamburger.kernels import cosine_hopper, launcher, tiling
from hamburger.kernels.tiling import fit_resident
from hamburger.linalg import ridge_projector

if not tiling.has_gluon():
    pytest.skip("Triton or its Gluon is missing", allow_module_level=True)

from emulated import Emulated
from resident_solves import BETA, H200, HOSTS, NEEDS, SMALL, TEMPERATURE, at_random, error, poisoned_memory, solve

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(launcher.INTERPRETED, reason="an interpreted kernel is not compiled"),
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
    found = hb.decompose(x.double(), ham, steps=steps, bases=bases.double(), backend="plain")
    return found.bases, found.codes.mT, found.reconstruction, ridge_projector(found.bases, beta).mT


# the last rank is padded to 128, whose stages are shorter: there are more of them than are asked for in advance
CASES = {
    "vq, plain": ("vq", (1, 128, 200, 64, 2), {}),
    "vq, no sweep": ("vq", (1, 128, 200, 64, 0), {}),
    "vq, two images, all padded and odd": ("vq", (2, 100, 131, 20, 2), {"scaled": True}),
    "vq, channels last": ("vq", (1, 128, 200, 64, 1), {"channels_last": True, "dtype": torch.bfloat16}),
    "vq, four rows of D for an owner": ("vq", (1, 128, 2_050, 64, 1), {"scaled": True}),
    "vq, many stages": ("vq", (1, 512, 100, 100, 1), {}),
    "cd, two images, all padded and odd": ("cd", (2, 100, 131, 20, 2), {}),
    "cd, channels last": ("cd", (1, 128, 200, 64, 1), {"channels_last": True, "dtype": torch.bfloat16, "keep": False}),
    "cd, the paper's d in 128 columns": ("cd", (1, 512, 300, 64, 1), {"card": SMALL, "scaled": True}),
    "cd, rank 100": ("cd", (1, 128, 100, 100, 1), {}),
}


@pytest.mark.parametrize("ham, sizes, more", CASES.values(), ids=CASES)
def test_values(ham, sizes, more):
    start = Emulated()

    def spoil(x):
        x[:, :, 17] = 0  # has no direction

    x, bases, found = solve(ham, *sizes, start, spoil=spoil, **more)
    assert start.compiled.metadata.launch_cooperative_grid  # its programs wait for each other
    assert start.compiled.metadata.shared <= NEEDS[ham](
        *fit_resident(*sizes[:4], more.get("card", H200), NEEDS[ham])[:3]
    )
    assert found[2].stride() == x.stride() and found[1].dtype == more.get("dtype", torch.float32)
    assert (found[3] is None) == (ham == "vq" or not more.get("keep", True))
    rounded = 3e-3 if "dtype" in more else 5e-4
    for value, wanted, most in zip(found, expected(ham, x, bases, sizes[-1]), (2e-4, rounded, 4e-3, 2e-4), strict=True):
        assert value is None or error(value, wanted) < most


def test_the_cases_are_cut_in_different_ways():
    cuts = {
        name: fit_resident(*sizes[:4], more.get("card", H200), NEEDS[ham]) for name, (ham, sizes, more) in CASES.items()
    }
    assert (
        cuts["vq, four rows of D for an owner"].D
        // cosine_hopper.reducer_count(cuts["vq, four rows of D for an owner"])
        == 4
    )
    assert {(found.D, found.R, found.BN) for found in cuts.values()} == {
        (128, 64, 64), (512, 128, 64), (512, 64, 128), (128, 128, 64)
    }  # fmt: skip


@pytest.mark.parametrize("ham", ["vq", "cd"])
def test_the_same_bits_whatever_the_order_of_the_programs(ham):
    def outputs(order):
        return solve(ham, 2, 100, 131, 20, 2, Emulated(order), scaled=ham == "vq")[2][:3]

    first = outputs(list)
    for order in (lambda left: left[::-1], at_random(0)):
        assert all(torch.equal(a, b) for a, b in zip(first, outputs(order), strict=True))


@pytest.mark.parametrize("ham, scaled", [("vq", False), ("vq", True), ("cd", True)])
def test_nan_in_one_column_is_nan_in_all_that_is_found(ham, scaled):
    def spoil(x):
        x[0, 3, 70] = torch.nan

    _, _, found = solve(ham, 1, 128, 104, 20, 1, Emulated(), scaled=scaled, spoil=spoil)
    assert all(value is None or value.isnan().all() for value in found)


@pytest.mark.parametrize("ham", ["vq", "cd"])
def test_the_block_takes_them(ham, monkeypatch):
    from hamburger.kernels import block

    start = Emulated()
    monkeypatch.setattr(
        getattr(block, ham), "resident_grid", lambda x, r, needs: fit_resident(*x.shape, r, H200, needs)
    )
    monkeypatch.setattr(HOSTS[ham], "launch", start)
    draw = torch.Generator().manual_seed(0)
    z, bases = torch.randn(2, 100, 131, generator=draw).bfloat16(), torch.randn(2, 100, 20, generator=draw)
    found = block.solve_ham(
        z,
        ham,
        (TEMPERATURE, BETA),
        bases,
        2,
        keep=True,
        counts=torch.zeros(2, launcher.COUNTERS_PER_IMAGE, dtype=torch.int32),
    )
    assert start.compiled is not None
    assert found.codes.dtype == torch.bfloat16  # what the kernel after them multiplies with
    assert found.slope.shape == (bases.shape if ham == "cd" else (0,))
    wanted = expected(ham, z, bases, 2)
    assert error(found.bases, wanted[0]) < 2e-4 and error(found.codes, wanted[1]) < 3e-3


@pytest.mark.parametrize("steps, beta", [(0, 0.1), (1, 0.0)])
def test_what_the_kernel_of_cd_cannot_do_takes_several_launches(steps, beta, monkeypatch):
    from hamburger.kernels import cd

    monkeypatch.setattr(cd, "resident_grid", lambda *_: pytest.fail("asked for one launch"))
    monkeypatch.setattr(cd, "_solve_by_steps", lambda *given: given)
    x, bases = torch.randn(1, 128, 64).bfloat16(), torch.randn(1, 128, 8)
    assert cd.solve_factors(x, bases, steps, TEMPERATURE, beta, keep=False, product=True)[2] == steps
