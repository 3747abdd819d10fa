"""The same layer on a CUDA device: values, bits, precision, memory, and no hidden synchronisation."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import assert_close, relative_error

import hamburger as hb

pytestmark = pytest.mark.gpu
NAMES = ["nmf", "vq", "cd"]


@pytest.fixture(autouse=True)
def full_float32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def options(name):
    return {"ham": name, "rank": 8} | ({} if name == "nmf" else {"temperature": 0.1})


@pytest.mark.parametrize("variant", [{}, {"version": "v2+", "dual": True}, {"heads": 2}, {"init": "online"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gpu_matches_cpu_and_itself(name, variant):
    layer, z = hb.Hamburger(64, **options(name), **variant).eval(), torch.randn(3, 64, 33, 31)
    gpu = copy.deepcopy(layer).cuda()
    first = gpu(z.cuda())
    assert torch.equal(gpu(z.cuda()), first)
    assert_close(first, layer(z), slack=5)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_autocast_is_finite_and_accurate(name, scale, precision):
    layer = hb.Hamburger(64, **options(name)).cuda().eval()
    z = (torch.randn(2, 64, 65, 63, device="cuda") * scale).requires_grad_()
    with torch.autocast("cuda", dtype=precision):
        y = layer(z)
    y.square().mean().backward()
    assert y.isfinite().all() and z.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    exact = copy.deepcopy(layer).double()(z.detach().double())
    assert relative_error(y, exact) < (1e-3 if precision == torch.float16 else 0.1)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward_never_synchronise(name):
    layer, z = hb.Hamburger(64, ham=name, rank=8).cuda().train(), torch.randn(2, 64, 32, 32, device="cuda")
    layer(z).mean().backward()  # first call: handles and workspaces
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(z).mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", NAMES)
def test_peak_memory_of_one_step_does_not_grow_with_the_steps(name):
    x = torch.rand(1, 256, 16384, device="cuda", requires_grad=True)

    def peak(steps, grad):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        hb.decompose(x, name, rank=32, steps=steps, grad=grad).reconstruction.sum().backward()
        x.grad = None
        return torch.cuda.max_memory_allocated() - before

    peak(2, "one-step")
    assert peak(24, "one-step") == peak(6, "one-step")
    assert peak(24, "bptt") > 2 * peak(6, "bptt")


def test_cpu_generator_works_with_gpu_tensors():
    x = torch.rand(2, 16, 40)
    a, b = (
        hb.decompose(v, "nmf", rank=4, generator=torch.Generator().manual_seed(3)).reconstruction for v in (x, x.cuda())
    )
    assert_close(b, a, slack=5)


def test_training_is_reproducible_from_the_seed():
    layer, z = hb.Hamburger(64, rank=8, norm="none").cuda().train(), torch.randn(2, 64, 32, 32, device="cuda")
    outs = []
    for _ in range(2):
        torch.manual_seed(1)
        outs.append(layer(z))
    assert torch.equal(*outs)


@pytest.mark.filterwarnings("ignore")  # inductor's advice about TF32
@pytest.mark.parametrize("name", NAMES)
def test_compiled_by_inductor(name):
    layer = hb.Hamburger(64, **options(name)).cuda().eval()
    fast = torch.compile(layer, fullgraph=True)
    z = torch.randn(2, 64, 32, 32, device="cuda")
    assert_close(fast(z), layer(z), slack=10)


def test_bases_on_another_device_are_named():
    with pytest.raises(hb.InputError, match="bases are on cpu but x on cuda"):
        hb.decompose(torch.rand(1, 4, 9, device="cuda"), hb.NMF(2), bases=torch.rand(1, 4, 2))


def test_negative_input_raises_under_debug():
    with hb.debug(), pytest.raises(ValueError, match="needs x >= 0"):
        hb.decompose(torch.randn(1, 4, 9, device="cuda"), "nmf", rank=2)
