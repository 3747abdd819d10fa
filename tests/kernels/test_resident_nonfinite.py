"""Faults put into the PTX of the resident kernels must be detected by the emulator.

Otherwise the other tests, which emulate the unchanged text, would show little.
"""

from __future__ import annotations

import itertools
import re

import pytest

from hamburger.kernels import common, tiling

if not tiling.has_gluon():
    pytest.skip("Triton or its Gluon is missing", allow_module_level=True)

from emulated import Emulated, compile_as_triton_would
from ptx import Hang, Race
from resident_solves import poisoned_memory, solve

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(common.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]
SIZES = 1, 128, 104, 64, 1  # two programs, each of which updates a part of D


@pytest.fixture(autouse=True)
def poisoned():
    with poisoned_memory():
        yield


@pytest.fixture
def text():
    compiled = []
    solve(*SIZES, lambda kernel, _, *args, **options: compiled.append(compile_as_triton_would(kernel, args, options)))
    return compiled[0][0].asm["ptx"]


@pytest.fixture
def run_text():
    """Run an edited text in place of the compiled one."""
    return lambda text: solve(*SIZES, Emulated(edit=lambda _: text))


def first_program_first():
    """An order of programs in which the first runs most often: it continues where it should wait for others."""
    rounds = itertools.count()
    return lambda left: left if next(rounds) % 8 == 7 else left[:1]


def find_lines(text, opcode):
    """The lines of an instruction."""
    return [i for i, line in enumerate(text.split("\n")) if re.match(rf"\s*(@!?%\w+\s+)?{re.escape(opcode)}\b", line)]


def remove_lines(text, *lines):
    return "\n".join(line for i, line in enumerate(text.split("\n")) if i not in lines)


def test_emulated_kernel_has_no_faults(text, run_text):
    run_text(text)


def test_emulator_detects_every_removed_fence(text, run_text):
    fences = find_lines(text, "fence.proxy.async")
    assert len(fences) >= 3
    for fence in fences:
        with pytest.raises(Race, match="wgmma reads what was not written, fenced"):
            run_text(remove_lines(text, fence))


def test_emulator_detects_every_removed_barrier(text, run_text):
    for fence in find_lines(text, "fence.proxy.async"):
        product = min(place for place in find_lines(text, "wgmma.mma_async") + find_lines(text, "bra") if place > fence)
        with pytest.raises(Race, match="wgmma reads what was not written, fenced"):
            run_text(remove_lines(text, *(place for place in find_lines(text, "bar.sync") if fence < place < product)))


def test_emulator_detects_missing_barriers_before_arrival(text, run_text):
    for arrival in find_lines(text, "red.global") + find_lines(text, "atom.global"):
        stored = max(place for place in find_lines(text, "st.global") if place < arrival)
        with pytest.raises(Race, match=r"bar\.sync"):
            run_text(remove_lines(text, *(place for place in find_lines(text, "bar.sync") if stored < place < arrival)))


def test_emulator_detects_arrivals_without_release(text, run_text):
    with pytest.raises(Race, match="with no barrier after program"):
        run_text(text.replace(".release.", ".relaxed."))


def test_emulator_detects_removed_waits(text, run_text):
    polls = [match.span() for match in re.finditer(r"@first ld\.acquire\.gpu\.global\.b32 seen,[^;]*;", text)]
    assert len(polls) == 2
    for first, end in polls:
        with pytest.raises(Race, match="with no barrier after"):
            run_text(text[:first] + "mov.b32 seen, 0x7FFFFFFF;" + text[end:])  # all have come, it seems


def test_emulator_detects_unawaited_products(text, run_text):
    with pytest.raises(Race, match="in flight"):
        run_text(remove_lines(text, *find_lines(text, "wgmma.wait_group")))


def test_emulator_detects_missing_arrivals():
    def one_less(kernel, grid, *args, **options):
        Emulated()(kernel, (grid[0] - 1, *grid[1:]), *args, **options)

    with pytest.raises(Hang, match=r"programs \[0\] wait for ever"):
        solve(*SIZES, one_less)
