"""NMF in one launch, as it is compiled for the card, emulated on a CPU: its values, its order, its races."""

from __future__ import annotations

import math
import random
import re

import pytest
import torch
from torch.nn.functional import normalize

from hamburger.ops import launch, wave
from hamburger.ops.wave import Card, Wave, cut

if not wave.gluon():
    pytest.skip("Triton or its Gluon is missing", allow_module_level=True)

from emulated import Emulated
from ptx import Hang, Race

from hamburger.ops.nmf import wave as host

pytestmark = [
    pytest.mark.skipif(launch.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]
H200 = Card((9, 0), processors=132, shared=232_448)
SMALL = Card((9, 0), processors=4, shared=232_448)  # whose programs have to take more columns
EPS = 1e-6


@pytest.fixture(autouse=True)
def poisoned():
    """What the host does not fill is NaN."""
    torch.set_deterministic_debug_mode("error")
    assert torch.empty(8).isnan().all()
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture
def solve(monkeypatch):
    """The host's own code, with `start` where it would start the kernel.   ->   x, bases, what came of them"""

    def call(b, d, n, r, steps, start, *, card=H200, channels_last=False, dtype=torch.float32, keep=True):
        monkeypatch.setattr(host, "start", start)
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(b, n, d, generator=draw).mT if channels_last else torch.randn(b, d, n, generator=draw)
        x, bases = x.abs().bfloat16(), normalize(torch.randn(b, d, r, generator=draw).abs(), dim=1)
        before = x.clone(), bases.clone()
        found = host.solve(x, bases, cut(b, d, n, r, card), steps, EPS, keep=keep, product=True, dtype=dtype)
        assert torch.equal(x, before[0]) and torch.equal(bases, before[1])
        return x, bases, found

    return call


def reference(x, d, steps):
    """float64, one image, by way of the whole of D C.   x: d n   d: d r   ->   D, C, D C, C / (D^T D C + eps)"""
    x, d = x.double(), d.double()
    likes = torch.exp(d.T @ x)
    c = likes / likes.sum(0)
    for step in range(steps + 1):
        ratio = c / (d.T @ (d @ c) + EPS)
        c = ratio * (d.T @ x)
        if step < steps:
            d = d * (x @ c.T) / (d @ c @ c.T + EPS)
    return d, c, d @ c, ratio


def error(found, wanted):
    """Relative, and infinite where something is NaN."""
    error = float((found.double() - wanted).norm() / wanted.norm())
    return error if math.isfinite(error) else math.inf


CASES = {
    "plain": ((1, 128, 200, 64, 2), {}),
    "no sweep": ((1, 128, 200, 64, 0), {}),
    "two images, all padded": ((2, 100, 130, 20, 2), {}),
    "odd n": ((1, 100, 131, 20, 1), {}),
    "channels last, codes in bfloat16": ((1, 128, 200, 64, 1), {"channels_last": True, "dtype": torch.bfloat16}),
    "more programs than are added at once": ((1, 128, 4_200, 64, 1), {"keep": False}),
    "rank 100": ((1, 256, 300, 100, 1), {}),
    "the paper's d in 128 columns": ((1, 512, 300, 64, 2), {"card": SMALL}),
}


@pytest.mark.parametrize("sizes, more", CASES.values(), ids=CASES)
def test_values(sizes, more, solve):
    start = Emulated()
    x, bases, (d, c, y, ratio) = solve(*sizes, start, **more)
    assert start.compiled.metadata.launch_cooperative_grid  # its programs wait for each other
    assert y.stride() == x.stride() and c.dtype == more.get("dtype", torch.float32)
    assert (ratio is None) == (not more.get("keep", True))
    for i in range(len(x)):
        wanted = reference(x[i], bases[i], sizes[-1])
        assert max(map(error, (d[i], c[i].T, y[i]), wanted)) < 5e-3
        assert ratio is None or error(ratio[i].T, wanted[3]) < 5e-3


def test_the_cases_are_cut_in_different_ways():
    cuts = {cut(*sizes[:4], more.get("card", H200)) for sizes, more in CASES.values()}
    assert {Wave(128, 64, 64, 66, 8), Wave(256, 128, 64, 5, 32), Wave(512, 64, 128, 3, 32)} < cuts


def at_random(seed):
    """Some of the programs have a turn, in any order."""
    draw = random.Random(seed)
    return lambda left: draw.sample(left, draw.randint(1, len(left)))


def test_the_same_bits_whatever_the_order_of_the_programs(solve):
    def outputs(order):
        return solve(2, 100, 130, 20, 2, Emulated(order))[2]

    first = outputs(list)
    for order in (lambda left: left[::-1], at_random(0)):
        assert all(torch.equal(a, b) for a, b in zip(first, outputs(order), strict=True))


# The other way round: what is spoiled in the text of PTX must be seen, or else the checks above say little.


@pytest.fixture
def text(solve):
    start = Emulated()
    solve(1, 128, 104, 64, 0, start)
    return start.compiled.asm["ptx"]


@pytest.fixture
def spoiled(solve):
    """Run another text, of two programs with two units of D each."""
    return lambda text: solve(1, 128, 104, 64, 1, Emulated(edit=lambda _: text))


def places(text, opcode):
    """The lines of an instruction."""
    return [i for i, line in enumerate(text.split("\n")) if re.match(rf"\s*(@!?%\w+\s+)?{re.escape(opcode)}\b", line)]


def without(text, *lines):
    return "\n".join(line for i, line in enumerate(text.split("\n")) if i not in lines)


def test_nothing_is_wrong_with_the_text_itself(text, spoiled):
    spoiled(text)


def test_every_fence_is_needed(text, spoiled):
    fences = places(text, "fence.proxy.async")
    assert len(fences) >= 5
    for fence in fences:
        with pytest.raises(Race, match="wgmma reads what was not written, fenced"):
            spoiled(without(text, fence))


def test_every_barrier_behind_a_fence_is_needed(text, spoiled):
    for fence in places(text, "fence.proxy.async"):
        product = min(place for place in places(text, "wgmma.mma_async") + places(text, "bra") if place > fence)
        with pytest.raises(Race, match="wgmma reads what was not written, fenced"):
            spoiled(without(text, *(place for place in places(text, "bar.sync") if fence < place < product)))


def test_shares_are_written_before_a_program_arrives(text, spoiled):
    arrival = min(places(text, "red.global") + places(text, "atom.global"))
    stored = max(place for place in places(text, "st.global") if place < arrival)
    with pytest.raises(Race, match=r"since the last bar\.sync"):
        spoiled(without(text, *(place for place in places(text, "bar.sync") if stored < place < arrival)))


def test_an_arrival_has_to_release(text, spoiled):
    with pytest.raises(Race, match="with no barrier after program"):
        spoiled(text.replace(".release.", ".relaxed."))


@pytest.mark.parametrize("barrier", [0, 1])
def test_a_program_has_to_wait(barrier, text, spoiled):
    polls = re.findall(r"ld\.acquire\.gpu\.global\.b32 +%\w+,[^;]*;", text)
    assert len(polls) == 4  # once, and then in a loop, at each of two barriers
    for poll in polls[2 * barrier : 2 * barrier + 2]:
        text = text.replace(poll, f"mov.b32 {poll.split()[1]} 0x7FFFFFFF;")  # all have come, it seems
    with pytest.raises(Race, match="with no barrier after"):
        spoiled(text)


def test_products_have_to_be_waited_for(text, spoiled):
    with pytest.raises(Race, match="in flight"):
        spoiled(without(text, *places(text, "wgmma.wait_group")))


def test_a_program_that_never_arrives_is_seen(solve):
    def one_less(kernel, grid, *args, **options):
        Emulated()(kernel, (grid[0] - 1, *grid[1:]), *args, **options)

    with pytest.raises(Hang, match=r"programs \[0\] wait for ever"):
        solve(1, 128, 104, 64, 1, one_less)
