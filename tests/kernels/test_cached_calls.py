"""Which calls consist of launches only, so that the launch cache can repeat them. Kernels do nothing here."""

from __future__ import annotations

import sys

import pytest
import torch

import hamburger as hb

pytest.importorskip("triton")
from hamburger.kernels import (
    block,
    block_training,
    cd,
    common,
    cosine,
    dispatch,
    launcher,
    nmf,
    nmf_hopper,
    tiling,
    vq,
)
from hamburger.kernels import decompose as kernels
from hamburger.kernels.dispatch import LaunchError
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


@pytest.fixture
def variants(monkeypatch):
    """No variant has failed yet; streaming is the fast variant of each ham."""
    monkeypatch.setattr(launcher, "_unusable", set())
    monkeypatch.setattr(launcher, "_warned", set())
    for module in HAMS.values():
        monkeypatch.setattr(module, "streaming_grid", lambda *_: STREAMED)


REFUSAL = "Triton Error [CUDA]: too many blocks in cooperative launch"


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("message", "tries"), [(REFUSAL, 3), ("CompilationError: no such layout", 1)])
@pytest.mark.parametrize("ham", HAMS)
def test_a_variant_that_does_not_run_is_replaced_with_one_warning(ham, message, tries, cached, variants, monkeypatch):
    tried = []

    def fail(*args, **options):
        tried.append(ham)
        raise LaunchError(message)

    monkeypatch.setattr(*COOPERATIVE[ham], fail)
    x, bases, spec = torch.randn(1, 100, 64).bfloat16(), torch.rand(1, 100, 20), hb.hams.create(ham).fused_spec()
    with pytest.warns(RuntimeWarning, match=f"the streaming {ham.upper()} kernels do not run here.*{message[:8]}"):
        assert kernels.decompose(spec, x, bases, 2)[2].shape == x.shape
    for _ in range(2):  # a refusal may be of this call only: the variant is tried again, without another warning
        assert kernels.decompose(spec, x, bases, 2)[2].shape == x.shape
    assert len(tried) == tries

    def exhaust(*args, **options):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(launcher, "_unusable", set())
    monkeypatch.setattr(*COOPERATIVE[ham], exhaust)
    with pytest.raises(RuntimeError, match="out of memory"):
        kernels.decompose(spec, x, bases, 2)


def test_launches_of_a_failed_variant_are_not_repeated(variants, monkeypatch):
    monkeypatch.setattr(launcher.recorder, "launches", ["earlier"])

    def fail():
        launcher.recorder.launches.append("of the failed variant")
        raise LaunchError(REFUSAL)

    assert launcher.try_variant("some", fail) is None and launcher.recorder.launches == ["earlier"]


def test_a_refused_repetition_calls_the_solve(variants, monkeypatch):
    class Refused:
        def play(self, *_):
            raise RuntimeError(REFUSAL)

    class OnGpu(torch.Tensor):
        is_cuda = True

        def get_device(self):
            return 0

    x = torch.ones(3).as_subclass(OnGpu)
    key = ("some", (x.dtype, x.shape, x.stride(), 0, x.data_ptr() % 16))
    monkeypatch.setattr(launcher, "_cache", {(("some",), *key[1:]): Refused()})
    with pytest.warns(RuntimeWarning, match="cooperative"):
        outputs = launcher.launch_cached(lambda x: (x + 1,), (x,), "some")
    assert torch.equal(outputs[0], torch.full((3,), 2.0))


def test_kernels_that_do_not_compile_give_way_to_plain_torch(cached, variants, monkeypatch):
    def fail(*args, **options):
        raise LaunchError("sums_kernel: CompilationError: no such operator")

    monkeypatch.setattr(dispatch, "_failures", [])
    monkeypatch.setattr(dispatch, "fused_by_default", lambda x: not dispatch._failures)
    monkeypatch.setattr(dispatch, "why_not_on_device", lambda *_: None)
    monkeypatch.setattr(burger, "resolve_backend", dispatch.resolve_backend)
    for module in HAMS.values():
        monkeypatch.setattr(module, "streaming_grid", lambda *_: None)
    for name, module in list(sys.modules.items()):
        if name.startswith("hamburger.kernels"):
            monkeypatch.setattr(module, "launch", fail, raising=False)
    x, bases = torch.rand(1, 100, 64), torch.rand(1, 100, 20)
    expected = hb.decompose(x, "nmf", rank=20, bases=bases, backend="plain").reconstruction
    with pytest.raises(LaunchError, match="no such operator"):
        hb.decompose(x, "nmf", rank=20, bases=bases, backend="fused")
    with pytest.warns(RuntimeWarning, match="so plain torch takes over .*no such operator.*HAM_BACKEND=plain"):
        assert torch.equal(hb.decompose(x, "nmf", rank=20, bases=bases).reconstruction, expected)
    assert torch.equal(hb.decompose(x, "nmf", rank=20, bases=bases).reconstruction, expected)

    layer, plain = (hb.Hamburger(100, rank=20, seed=1, backend=backend).eval() for backend in ("auto", "plain"))
    plain.load_state_dict(layer.state_dict())
    for grad in (torch.no_grad, torch.enable_grad):
        monkeypatch.setattr(dispatch, "_failures", [])
        with grad(), pytest.warns(RuntimeWarning, match="plain torch"):
            y = layer(x)
        assert torch.equal(y, plain(x))
