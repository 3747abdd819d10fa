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
        assert all(size <= 65_535 for size in grid[1:])  # what CUDA allows
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


WHOLE, STREAMED = Wave(128, 64, 64, 1), Stream(128, 64, 1, 2)
FORMS = {"one launch": (WHOLE, None), "one pass": (None, STREAMED), "several": (None, None)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ham", HAMS)
@pytest.mark.parametrize(("b", "init"), [(1, "random"), (2, "random"), (2, "fixed")])
def test_launches_alone(ham, form, b, init, taped, monkeypatch):
    for module in HAMS.values():
        monkeypatch.setattr(module, "wave_of", lambda *_: FORMS[form][0])
        monkeypatch.setattr(module, "stream_of", lambda *_: FORMS[form][1])
    layer = hb.Hamburger(100, ham=ham, rank=20, init=init)
    z = torch.randn(b, 100, 8, 8).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        layer.train()(z).sum().backward()
        with torch.no_grad():
            layer.eval()(z)
    HAMS[ham].decompose(z.detach().flatten(2), torch.rand(b, 100, 20), steps=2)
    solved_by_torch = ham == "cd" and form == "several"  # the ridge of its read-out
    assert taped.pop("trained back")
    assert set(taped) == {"trained", "finished", ham}
    assert all(made != solved_by_torch for made in taped.values())


def test_a_wide_layer(taped):
    layer, z = hb.Hamburger(2048, rank=64, steps=1), torch.randn(1, 2048, 4, 4).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        layer.train()(z).sum().backward()
    assert taped["trained"] and taped["trained back"]


@pytest.mark.parametrize("ham", HAMS)
def test_a_driver_without_room_for_one_launch(ham, taped, monkeypatch):
    module, tried = HAMS[ham], []
    monkeypatch.setattr(wave, "_refused", set())
    monkeypatch.setattr(
        wave, "wave_of", lambda x, *_: None if x.get_device() in wave._refused else FORMS["one launch"][0]
    )
    monkeypatch.setattr(module, "wave_of", wave.wave_of)
    monkeypatch.setattr(module, "stream_of", lambda *_: None)

    def refused(*args, **options):
        tried.append(ham)
        raise RuntimeError("Triton Error [CUDA]: too many blocks in cooperative launch")

    monkeypatch.setattr(module.wave, "solve", refused)
    x, bases = torch.randn(1, 100, 64).bfloat16(), torch.rand(1, 100, 20)
    for _ in range(2):
        assert module.decompose(x, bases, steps=2)[2].shape == x.shape
    assert tried == [ham]

    def broken(*args, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module.wave, "solve", broken)
    monkeypatch.setattr(wave, "_refused", set())
    with pytest.raises(RuntimeError, match="out of memory"):
        module.decompose(x, bases, steps=2)
