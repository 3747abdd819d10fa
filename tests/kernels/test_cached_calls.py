"""Which calls consist of launches only, so that the launch cache can repeat them. Kernels do nothing here."""

from __future__ import annotations

import sys

import pytest
import torch

import hamburger as hb

pytest.importorskip("triton")
from hamburger.kernels import block, block_training, cd, common, cosine, launcher, nmf, nmf_hopper, tiling, vq
from hamburger.kernels import decompose as kernels
from hamburger.kernels.tiling import ResidentGrid, StreamingGrid
from hamburger.layers import burger, fused_block

pytestmark = [
    pytest.mark.skipif(common.INTERPRETED, reason="kernels would run"),
    pytest.mark.skipif(not tiling.has_gluon(), reason="Triton's Gluon is missing"),
    pytest.mark.filterwarnings("ignore"),  # of uninitialised numbers
]
HAMS = {"nmf": nmf, "vq": vq, "cd": cd}
COOPERATIVE = {
    "nmf": (nmf_hopper, "solve_streaming"),
    "vq": (cosine, "run_streaming_steps"),
    "cd": (cosine, "run_streaming_steps"),
}


@pytest.fixture
def cached(monkeypatch):
    """Records which calls were offered to the launch cache, and whether they can be cached."""
    seen = {}

    def keeping(solve, inputs, *key):
        outputs, kept, made = launcher.record_launches(solve, inputs)
        seen[key[0]] = made is not None
        return outputs, kept

    def watched(solve, inputs, *key):
        return keeping(lambda *inputs: (solve(*inputs), ()), inputs, *key)[0]

    def pretended(kernel, grid, *args, **options):
        assert all(size <= 65_535 for size in grid[1:])  # what CUDA allows
        if launcher.recorder.launches is not None:
            launcher.recorder.launches.append(launcher.KernelLaunch(object(), grid, args))

    launch = launcher.launch
    for name, module in list(sys.modules.items()):
        if name.startswith("hamburger.kernels"):
            for attribute, value in list(vars(module).items()):
                if value is launch:
                    monkeypatch.setattr(module, attribute, pretended)
    for module in (block, block_training, kernels, launcher):
        monkeypatch.setattr(module, "launch_cached", watched)
    monkeypatch.setattr(block_training, "launch_cached_saving", keeping)
    monkeypatch.setattr(burger, "resolve_backend", lambda *_: "auto")
    monkeypatch.setattr(fused_block, "select_spec", lambda requested, x, ham, *_, **__: ham.fused_spec())
    return seen


WHOLE, STREAMED = ResidentGrid(128, 64, 64, 1), StreamingGrid(128, 64, 1, 2)
VARIANTS = {"one launch": (WHOLE, None), "one pass": (None, STREAMED), "several": (None, None)}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ham", HAMS)
@pytest.mark.parametrize(("b", "init"), [(1, "random"), (2, "random"), (2, "fixed")])
def test_cached_call_only_launches(ham, variant, b, init, cached, monkeypatch):
    for module in HAMS.values():
        monkeypatch.setattr(module, "streaming_grid", lambda *_: VARIANTS[variant][1])
    monkeypatch.setattr(nmf, "resident_grid", lambda *_: VARIANTS[variant][0])
    layer = hb.Hamburger(100, ham=ham, rank=20, init=init)
    z = torch.randn(b, 100, 8, 8).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        layer.train()(z).sum().backward()
        with torch.no_grad():
            layer.eval()(z)
    kernels.decompose(layer.ham.ham.fused_spec(), z.detach().flatten(2), torch.rand(b, 100, 20), 2)
    solved_by_torch = ham == "cd" and variant != "one pass"  # the ridge of its read-out
    assert cached.pop("train backward")
    assert set(cached) == {"train", "evaluate", "decompose"}
    assert all(made != solved_by_torch for made in cached.values())


def test_wide_layer_is_cached(cached):
    layer, z = hb.Hamburger(2048, rank=64, steps=1), torch.randn(1, 2048, 4, 4).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        layer.train()(z).sum().backward()
    assert cached["train"] and cached["train backward"]


@pytest.mark.parametrize("ham", HAMS)
def test_refused_cooperative_launch_falls_back(ham, cached, monkeypatch):
    module, tried = HAMS[ham], []
    monkeypatch.setattr(tiling, "_devices_without_cooperative", set())
    monkeypatch.setattr(module, "streaming_grid", lambda *_: STREAMED)

    def refused(*args, **options):
        tried.append(ham)
        raise RuntimeError("Triton Error [CUDA]: too many blocks in cooperative launch")

    monkeypatch.setattr(*COOPERATIVE[ham], refused)
    x, bases, spec = torch.randn(1, 100, 64).bfloat16(), torch.rand(1, 100, 20), hb.hams.create(ham).fused_spec()
    for _ in range(2):
        assert kernels.decompose(spec, x, bases, 2)[2].shape == x.shape
    assert tried == [ham]

    def broken(*args, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(*COOPERATIVE[ham], broken)
    monkeypatch.setattr(tiling, "_devices_without_cooperative", set())
    with pytest.raises(RuntimeError, match="out of memory"):
        kernels.decompose(spec, x, bases, 2)
