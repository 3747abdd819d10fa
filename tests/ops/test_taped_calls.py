"""Which calls are launches alone, so that a tape can stand for them. Kernels do nothing here; it is the host's part."""

from __future__ import annotations

import sys

import pytest
import torch

import hamburger as hb

pytest.importorskip("triton")
from hamburger.layers import fused_block
from hamburger.ops import launch, start, tape, wave
from hamburger.ops.block import fused, train
from hamburger.ops.cd import fused as cd
from hamburger.ops.nmf import fused as nmf
from hamburger.ops.stream import Stream
from hamburger.ops.vq import fused as vq
from hamburger.ops.wave import Wave

pytestmark = [
    pytest.mark.skipif(launch.INTERPRETED, reason="kernels would run"),
    pytest.mark.skipif(not wave.gluon(), reason="Triton's Gluon is missing"),
    pytest.mark.filterwarnings("ignore"),  # of numbers that nobody wrote
]
HAMS = {"nmf": nmf, "vq": vq, "cd": cd}


@pytest.fixture
def taped(monkeypatch):
    """What was asked to be taped, and whether it can be."""
    seen = {}

    def keeping(solve, given, *facts):
        outputs, kept, made = tape.record(solve, given)
        seen[facts[0]] = made is not None
        return outputs, kept

    def watched(solve, given, *facts):
        return keeping(lambda *given: (solve(*given), ()), given, *facts)[0]

    def pretended(kernel, grid, *args, **options):
        if start.watched.launches is not None:
            start.watched.launches.append(start.Launch(object(), grid, args))

    for name, module in list(sys.modules.items()):
        if name.startswith("hamburger.ops"):
            for attribute, value in list(vars(module).items()):
                if value is start.start and module is not start:
                    monkeypatch.setattr(module, attribute, pretended)
    for module in (fused, train, nmf, vq, cd):
        monkeypatch.setattr(module, "taped", watched)
    monkeypatch.setattr(train, "taped_keeping", keeping)
    monkeypatch.setattr(fused_block, "fuses", lambda *_: True)
    return seen


FORMS = {"one launch": (Wave(128, 64, 64, 1), None), "one pass": (None, Stream(128, 64, 1)), "several": (None, None)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ham", HAMS)
def test_launches_alone(ham, form, taped, monkeypatch):
    for module in HAMS.values():
        monkeypatch.setattr(module, "wave_of", lambda *_: FORMS[form][0])
        monkeypatch.setattr(module, "stream_of", lambda *_: FORMS[form][1])
    layer, z = hb.Hamburger(100, ham=ham, rank=20), torch.randn(1, 100, 8, 8).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        layer.train()(z).sum().backward()
        with torch.no_grad():
            layer.eval()(z)
    HAMS[ham].decompose(z.detach().flatten(2), torch.rand(1, 100, 20), steps=2)
    solved_by_torch = ham == "cd" and form == "several"  # the ridge of its read-out
    assert taped.pop("trained back")
    assert set(taped) == {"trained", "finished", ham}
    assert all(made != solved_by_torch for made in taped.values())
