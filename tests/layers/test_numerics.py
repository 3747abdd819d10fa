"""Finite and accurate: autocast, eight orders of magnitude of scale, and the images that break divisions."""

from __future__ import annotations

import copy

import pytest
import torch
from tiers import full_except
from tolerances import assert_close, relative_error

import hamburger as hb
from hamburger.layers.ham import Bread

NAMES = ["nmf", "vq", "cd"]
SCALES = [1e-4, 1e-2, 1.0, 1e2, 1e4]

# Relative error of the whole layer against float64, in evaluation. Autocast rounds the breads' operands; VQ and CD
# amplify that by 1 / temperature before the softmax, so their bf16 figure is larger.
LAYER_ERROR = {
    "float32": {"nmf": 1e-4, "vq": 1e-4, "cd": 1e-4},
    "float16": {"nmf": 1e-4, "vq": 1e-4, "cd": 1e-4},  # runs in float32 throughout
    "bfloat16": {"nmf": 2e-2, "vq": 1e-1, "cd": 1e-1},
}


def images(kind, scale):
    z = torch.randn(3, 32, 12, 13) * scale
    if kind == "zero":
        z[1] = 0
    elif kind == "constant":
        z[1] = z[1, :, :1, :1]
    elif kind == "dead channel":
        z[:, 3] = 0
    elif kind == "column":
        z = z[:, :, :1, :1]
    elif kind == "dead pixels":
        z[:, :, ::2] = 0
    return z


def options(name):
    return {"ham": name, "rank": 8} | ({} if name == "nmf" else {"temperature": 0.1})


@pytest.mark.parametrize("kind", ["plain", "zero", "constant", "dead channel", "column", "dead pixels"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("precision", list(LAYER_ERROR))
@pytest.mark.parametrize("name", NAMES)
def test_output_and_gradients_are_finite_and_accurate(name, precision, scale, kind):
    layer = hb.Hamburger(32, **options(name)).eval()
    z = images(kind, scale).requires_grad_()
    dtype = getattr(torch, precision)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        y = layer(z)
    assert y.dtype == torch.float32
    assert y.isfinite().all()
    y.square().mean().backward()
    assert z.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    exact = copy.deepcopy(layer).double()(z.detach().double())
    assert relative_error(y, exact) < LAYER_ERROR[precision][name]


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_training_under_autocast_is_finite(name, scale, precision):
    layer = hb.Hamburger(32, ham=name, rank=8).train()  # the default, cold temperature
    z = images("zero", scale).requires_grad_()
    with torch.autocast("cpu", dtype=precision):
        y = layer(z)
    y.float().square().mean().backward()
    assert y.isfinite().all()
    assert z.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("kind", ["zero", "constant", "dead channel", "column", "dead pixels"])
@pytest.mark.parametrize("grad", ["one-step", "truncated:1", "bptt"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_on_degenerate_images(name, grad, kind):
    x = images(kind, 1.0).flatten(2).relu().requires_grad_()
    out = hb.decompose(x, grad=grad, **options(name)).reconstruction
    assert out.isfinite().all()
    out.square().mean().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_zero_image_decomposes_to_zero(name):
    out = hb.decompose(torch.zeros(1, 8, 20), name, rank=3).reconstruction
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_inputs_at_large_scale_stay_finite(name, dtype):
    """Sums over 4096 positions at scale 300 overflow float16 many times over."""
    x = (torch.randn(1, 64, 4096).relu() * 300).to(dtype)
    bases = hb.hams.create(name, rank=8).draw(1, 64, like=torch.empty(0))
    out = hb.decompose(x, bases=bases, **options(name))
    assert all(t.isfinite().all() for t in out)
    exact = hb.decompose(x.double(), bases=bases.double(), **options(name)).reconstruction
    assert_close(out.reconstruction, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_cast_to_half_runs_in_half(name, dtype):
    layer = hb.Hamburger(32, **options(name)).to(dtype).eval()
    z = torch.randn(2, 32, 6, 6, dtype=dtype)
    y = layer(z)
    assert y.dtype == dtype
    exact = copy.deepcopy(layer).double()(z.double())
    assert relative_error(y, exact) < (0.02 if dtype == torch.float16 else 0.15)


# The range that docs/nan.md states. A variance is a square, and so is NMF's C C^T: hence not up to 1e38.
RANGE = {
    torch.float64: [1e-30, 1e-10, 1.0, 1e10, 1e30],
    torch.float32: [1e-30, 1e-10, 1.0, 1e10, 1e15],
    torch.bfloat16: [1e-30, 1e-10, 1.0, 1e10, 1e15],
    torch.float16: [1e-7, 1e-3, 1.0, 1e2, 1e3, 1e4, 3e4],
}


def extreme_images(kind, scale, dtype):
    z = torch.randn(2, 16, 6, 5, dtype=torch.float64)
    z = {"zero": torch.zeros_like(z), "constant": torch.ones_like(z)}.get(kind, z) * scale
    if kind == "outlier":
        z[0, 3, 2, 2] = 100 * scale
    largest = torch.finfo(dtype).max
    return z.clamp(-largest, largest).to(dtype)


@pytest.mark.parametrize("kind", ["plain", "zero", "constant", "outlier"])
@pytest.mark.parametrize("init", full_except(("online",), ("random", "fixed", "learned", "online")))
@pytest.mark.parametrize("dtype", list(RANGE), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_of_each_dtype_is_finite_over_its_range(name, dtype, init, kind):
    for version in ("paper", "v2+"):
        for scale in RANGE[dtype]:
            layer = hb.Hamburger(16, ham=name, rank=4, init=init, version=version).to(dtype)
            for training in (True, False):
                z = extreme_images(kind, scale, dtype).requires_grad_()
                y = layer.train(training)(z)
                layer.zero_grad()
                y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape).to(dtype) / 100)
                tensors = {"output": y, "input gradient": z.grad, **dict(layer.named_buffers())}
                if dtype != torch.float16 or scale <= 100:  # the gradient of a weight is a sum over all positions
                    tensors |= {f"gradient of {key}": p.grad for key, p in layer.named_parameters()}
                broken = [key for key, tensor in tensors.items() if not tensor.isfinite().all()]
                assert not broken, (version, scale, training, broken)


@pytest.mark.parametrize("norm", ["batch", lambda c: torch.nn.GroupNorm(4, c), "none"], ids=["batch", "group", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_a_float16_layer_is_accurate_at_scale_1e4(name, norm):
    """Its products exceed 65504, which float16 cannot hold: they run in float32."""
    layer = hb.Hamburger(64, norm=norm, **options(name)).half().train()
    z = (torch.randn(2, 64, 8, 8) * 1e4).clamp(-3e4, 3e4).half()
    bases = layer.ham.dictionary.bases
    layer.ham.dictionary.init = "fixed"  # the same start for both
    exact = copy.deepcopy(layer).double()(z.double()).clamp(-65504, 65504)
    assert bases.dtype == torch.float16
    assert relative_error(layer(z), exact) < 0.02


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("build", [lambda: hb.Hamburger(8, rank=3, init="online"), lambda: hb.create_context("ema", 8)])
def test_a_nonfinite_batch_leaves_the_dictionary_and_raises_under_debug(build, value):
    layer = build().train()
    z = torch.randn(3, 8, 5, 5)
    z[1, 0, 0, 0] = value
    name = next(key for key, _ in layer.named_buffers() if key.endswith("bases"))
    before = {key: buffer.clone() for key, buffer in layer.named_buffers()}
    with hb.debug(), pytest.raises(hb.NotFiniteError, match="sample 1 of 3"):
        layer(z)
    assert all(torch.equal(buffer, before[key]) for key, buffer in layer.named_buffers())
    assert not layer(z)[1].isfinite().all()
    assert torch.equal(layer.get_buffer(name), before[name])


def test_nan_stays_in_its_image():
    layer = hb.Hamburger(8, rank=3).eval()
    z = torch.randn(3, 8, 5, 5)
    z[1, 0, 0, 0] = torch.nan
    y = layer(z)
    assert y[1].isnan().any()
    assert y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("version", ["paper", "v1", "v2", "v2+"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_half_inputs_under_autocast_stay_finite_up_to_scale_1e4(name, training, version):
    """What the convolution before it emits is half already."""
    layer = hb.Hamburger(64, version=version, **options(name)).train(training)
    if version == "v2+":
        layer.burger_scale.data.fill_(1.0)
    z = (torch.randn(2, 64, 8, 8) * 1e4).half().requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        y = layer(z)
    assert y.dtype == torch.float16
    assert y.isfinite().all()
    y.float().square().mean().div(1e4).backward()
    assert z.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(("name", "allowed"), [("nmf", 0.01), ("cd", 0.2), ("vq", 0.3)])
def test_bfloat16_error_of_the_context_at_the_default_temperature(name, allowed):
    """Without the skip that hides it. A temperature of 0.01 amplifies the rounding of the lower bread a hundredfold."""
    layer = hb.Hamburger(64, ham=name, rank=8).eval()
    z = torch.randn(2, 64, 300)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = layer.context(z)
    assert relative_error(actual, copy.deepcopy(layer).double().context(z.double())) < allowed


def test_zero_ridge_is_finite_on_degenerate_images():
    for x in (torch.zeros(1, 8, 30), torch.ones(1, 8, 30)):
        out = hb.decompose(x, "cd", rank=3, beta=0.0).reconstruction
        assert out.isfinite().all()
        assert_close(out, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_bread_reads_its_weight_once(dtype):
    """Under spectral norm every access in training is a power iteration."""

    class Counter(torch.nn.Module):
        calls = 0

        def forward(self, weight):
            self.calls += 1
            return weight

    bread, counter = Bread(4, 3, bias=True).to(dtype), Counter()
    torch.nn.utils.parametrize.register_parametrization(bread, "weight", counter)
    counter.calls = 0
    bread(torch.randn(2, 4, 5, dtype=dtype))
    assert counter.calls == 1
