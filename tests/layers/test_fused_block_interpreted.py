"""The Hamburger as one fused block in Triton's interpreter, against the plain layer in float64.

Collected only with TRITON_INTERPRET=1: Triton reads it when it is imported.
"""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import assert_close, relative_error

import hamburger as hb
from hamburger.layers import fused_block

HAMS = {
    "nmf": {"ham": "nmf"},
    "vq": {"ham": "vq", "temperature": 0.1},
    "vq-constant-norms": {"ham": "vq", "temperature": 0.1, "constant_norms": True},
    "cd": {"ham": "cd", "temperature": 0.1},
}
NAMES = ["nmf", "vq", "cd"]
NORMS = {"batch": "batch", "none": "none", "group": lambda c: torch.nn.GroupNorm(4, c)}


@pytest.fixture(autouse=True)
def poisoned():
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def taken(monkeypatch):
    """Which of the block's three ways was taken, call by call."""
    calls = []

    def spied(way, original):
        return lambda *a, **k: (calls.append(way), original(*a, **k))[1]

    for way in ("context", "evaluate", "train"):
        monkeypatch.setattr(fused_block, way, spied(way, getattr(fused_block, way)))
    return calls


def pair(name, **options):
    """The layer, fused, and its plain twin in float64. Statistics away from their neutral start."""
    options = {"inner": 20, "rank": 5, "steps": 2, **HAMS[name], **options}
    layer = hb.Hamburger(24, backend="fused", **options)
    if isinstance(layer.norm, torch.nn.BatchNorm1d):
        for t in (layer.norm.weight, layer.norm.bias, layer.norm.running_mean, layer.norm.running_var):
            t.data = torch.rand_like(t) + 0.2
    plain = copy.deepcopy(layer).double()
    plain.ham.backend = "plain"
    return layer, plain


def images(kind="odd", dtype=torch.float32):
    z = torch.randn(2, 24, 6, 7) if kind == "channels last" else torch.randn(2, 24, 37)
    z = z.contiguous(memory_format=torch.channels_last) if kind == "channels last" else z
    return z.to(dtype)


def step(layer, z, seed=3):
    """The output, the gradients of the input and of every parameter, and the buffers."""
    torch.manual_seed(seed)
    layer.zero_grad()
    z = z.detach().requires_grad_()
    y = layer(z)
    weight = torch.linspace(0, 9, y.numel()).sin().view(y.shape).to(y)
    (y * weight).sum().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters()}
    return {"y": y, "z": z.grad, **gradients, **{k: b.double() for k, b in layer.named_buffers()}}


@pytest.mark.parametrize(
    "train, norm, kind",
    [*((True, norm, "odd") for norm in NORMS), (True, "batch", "channels last"), (False, "batch", "odd")],
)
@pytest.mark.parametrize("name", HAMS)
def test_outputs_gradients_and_statistics(name, train, norm, kind, taken):
    layer, plain = (each.train(train) for each in pair(name, norm=NORMS[norm], init="fixed"))
    z = images(kind)
    actual, expected = step(layer, z), step(plain, z.double())
    assert taken == ["train" if train and norm == "batch" else "context"]
    assert actual["y"].stride() == expected["y"].stride() and actual["y"].dtype == z.dtype
    for key, value in expected.items():
        assert_close(actual[key].double(), value, dtype=torch.float32)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_a_float16_layer_runs_in_float32(name, train, taken):
    """Only inputs, weights and results are float16, so no ReLU is decided by a rounded value."""
    layer, _ = pair(name, init="fixed", version="v1")
    layer = layer.half().train(train)
    exact = copy.deepcopy(layer).double()
    exact.ham.backend = "plain"
    z = images(dtype=torch.float16)
    actual, expected = step(layer, z), step(exact, z.double())
    assert taken == ["context"]
    for key, value in expected.items():
        if key != "lower.bias" or name == "nmf":  # the norm makes it zero
            assert_close(actual[key].double(), value, dtype=torch.float16)
    with torch.no_grad():
        assert_close(layer.eval()(z).double(), exact.eval()(z.double()), dtype=torch.float16)
    assert taken == ["context", "evaluate"]


@pytest.mark.parametrize("kind", ["odd", "channels last"])
@pytest.mark.parametrize("norm, version", [*((norm, "paper") for norm in NORMS), ("batch", "v1")])
@pytest.mark.parametrize("name", NAMES)
def test_evaluation_without_a_graph(name, norm, version, kind, taken):
    layer, plain = (each.eval() for each in pair(name, norm=NORMS[norm], version=version))
    z = images(kind)
    with torch.no_grad():
        y = layer(z)
    assert taken == ["context" if norm == "group" else "evaluate"]
    assert_close(y, plain(z.double()))
    assert y.is_contiguous(memory_format=torch.channels_last) if kind == "channels last" else y.is_contiguous()


@pytest.mark.parametrize(
    "name, init", [("nmf", "random"), ("nmf", "fixed"), ("nmf", "online"), ("vq", "random"), ("cd", "online")]
)
def test_fused_block_draws_the_same_dictionaries(name, init, taken):
    """Drawn alike, moved alike, in a batch and alone. Without a norm, which leaves a bias no gradient to compare."""
    layer, plain = pair(name, init=init, norm="none")
    plain = plain.float()  # the same draws
    for b in (2, 1):
        for train in (True, False):
            z = images()[:b]
            actual, expected = step(layer.train(train), z), step(plain.train(train), z)
            for key, value in expected.items():
                assert_close(actual[key].double(), value.double(), dtype=torch.float32, slack=5)  # both are rounded
    assert taken == ["context"] * 4
    with torch.no_grad():
        assert_close(layer(z), plain(z), slack=5)
        assert layer.ham.dictionary.bases.isfinite().all()


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("kind", ["odd", "channels last"])
@pytest.mark.parametrize("name", NAMES)
def test_fused_block_starts_from_the_same_columns(name, kind, norm, taken):
    """z, of which they are columns, exists inside the kernels only."""
    layer, plain = pair(name, init="columns", norm=norm)
    z = images(kind)
    actual, expected = step(layer, z), step(plain, z.double())
    for key, value in expected.items():
        if key != "lower.bias" or name == "nmf" or norm == "none":  # the norm makes it zero
            assert_close(actual[key].double(), value, dtype=torch.float32, slack=5)
    with torch.no_grad():
        assert_close(layer.eval()(z), plain.eval()(z.double()), slack=5)
    assert taken == ["train" if norm == "batch" else "context", "evaluate"]


@pytest.mark.parametrize(
    "shape, version",
    [((1, 24, 300), "paper"), ((3, 24, 5, 7), "v1"), ((2, 24, 4), "v1")],
    ids=str,
)
@pytest.mark.parametrize("name", NAMES)
def test_training_with_batch_norm(name, shape, version, taken):
    """Several steps, each on another batch: the running statistics follow; drawn dictionaries are the same."""
    layer, plain = pair(name, version=version, init="random", inner=40, rank=min(20, shape[-1]))
    plain = plain.float()  # the same draws
    for seed in range(2):
        torch.manual_seed(seed)
        z = torch.randn(shape) * 3 + 1
        actual, expected = step(layer, z), step(plain, z)
        for key, value in expected.items():
            if key == "lower.bias" and name != "nmf":
                continue  # zero but for rounding: the norm takes it off
            assert_close(actual[key].double(), value.double(), dtype=torch.float32, slack=20)  # both are rounded
    assert taken == ["train"] * 2


def test_training_covers_several_tiles_in_every_dimension(taken):
    """More channels, more of r and more positions than one program takes."""
    torch.manual_seed(0)
    layer = hb.Hamburger(100, inner=72, rank=70, steps=1, init="fixed", backend="fused")
    plain = copy.deepcopy(layer).double()
    plain.ham.backend = "plain"
    z = torch.randn(2, 100, 150)
    actual, expected = step(layer, z), step(plain, z.double())
    assert taken == ["train"]
    for key, value in expected.items():
        assert_close(actual[key].double(), value, dtype=torch.float32, slack=5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_training_with_batch_norm_in_half_precision(name, dtype, taken):
    layer, plain = pair(name, init="fixed")
    z = images("odd", dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = step(layer, z)
    exact = step(plain, z.double())
    assert taken == ["train"] and actual["y"].dtype == dtype
    for key, value in exact.items():
        assert relative_error(actual[key], value) < 0.1, key


def test_custom_norm_follows_the_block(taken):
    for change in ({"momentum": None}, {"track_running_stats": False}, {"affine": False}):
        layer = hb.Hamburger(
            24, rank=5, backend="fused", norm=lambda c, change=change: torch.nn.BatchNorm1d(c, **change)
        )
        layer(images()).sum().backward()
    assert taken == ["context"] * 3


def test_second_derivative_raises():
    layer, z = pair("nmf")[0], images().requires_grad_()
    (dz,) = torch.autograd.grad(layer(z).square().sum(), z, create_graph=True)
    with pytest.raises(hb.OptionError, match="differentiated once"):
        dz.sum().backward()


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    "name, dtype, autocast",
    [
        *(("nmf", dtype, autocast) for dtype in (torch.float32, *HALVES) for autocast in HALVES),
        *((name, torch.float32, autocast) for name in ("vq", "cd") for autocast in HALVES),
    ],
    ids=str,
)
def test_autocast(name, dtype, autocast, taken):
    """float16 autocast leaves the whole block in float32; every dtype comes back as it came."""
    layer, plain = (each.eval() for each in pair(name))
    z = images("odd", dtype)
    with torch.autocast("cpu", dtype=autocast):
        actual = step(layer, z)
        with torch.no_grad():
            y = layer(z)
    assert taken == ["context", "evaluate"] and y.dtype == actual["y"].dtype == dtype
    exact = step(plain, z.double())
    assert_close(y, exact["y"], dtype=torch.bfloat16 if autocast == torch.bfloat16 else dtype, slack=2)
    limit = 0.1 if torch.bfloat16 in (autocast, dtype) else 0.01
    for key, value in exact.items():
        assert relative_error(actual[key], value) < limit, key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_cast_to_half(name, dtype, taken):
    layer = pair(name)[0].to(dtype).eval()
    plain = copy.deepcopy(layer).double()
    plain.ham.backend = "plain"
    limit = 0.1 if dtype == torch.bfloat16 else 0.05  # a rounding may cross the ReLU
    for z in (images("odd", dtype), images("odd")):
        actual, exact = step(layer, z), step(plain, z.double())
        assert actual["y"].dtype == z.dtype
        for key, value in exact.items():
            assert relative_error(actual[key], value) < limit, key
    assert taken == ["context"] * 2


def test_tokens(taken):
    channels = pair("nmf")[0].eval()
    tokens = hb.Hamburger(24, inner=20, rank=5, steps=2, layout="tokens", backend="fused").eval()
    tokens.load_state_dict(channels.state_dict())
    z = images()
    with torch.no_grad():
        y = tokens(z.mT.contiguous())
    assert y.is_contiguous()
    assert_close(y, channels(z).mT)
    assert taken == ["evaluate", "context"]


def test_large_half_precision_inputs_stay_finite(taken):
    layer = pair("nmf", norm="none")[0].eval()
    z = (torch.randn(2, 24, 37).abs() * 6e4).clamp(max=6.5e4).half()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        y = layer(z)
    assert taken == ["evaluate"] and y.isfinite().all() and y.dtype == torch.float16


def test_compiled(taken):
    layer = pair("nmf", init="fixed", norm="none")[0].train()
    torch._dynamo.reset()
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for z in (images(), images("channels last")):
        a, b = (z.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2))
        ours, theirs = fast(a), layer(b)
        assert torch.equal(ours, theirs)
        for y in (ours, theirs):
            y.square().sum().backward()
        assert_close(a.grad, b.grad, slack=5)
        with torch.no_grad():
            assert_close(fast(z), layer(z))
    assert taken.count("evaluate") == 2  # the eager calls alone


def test_frozen_breads_have_no_gradient():
    layer, z = pair("nmf")[0], images()
    layer.lower.requires_grad_(False)
    layer(z).sum().backward()
    assert layer.lower.weight.grad is None and layer.upper.weight.grad is not None
    layer.requires_grad_(False)
    assert not layer(z).requires_grad


def test_hooked_ham_is_called_as_a_module(taken):
    layer, plain = (each.eval() for each in pair("nmf"))
    seen = []
    handle = layer.ham.register_forward_hook(lambda *arguments: seen.append(arguments[2].shape))
    z = images()
    with torch.no_grad():
        assert_close(layer(z), plain(z.double()))
        assert seen == [(2, 20, 37)] and not taken
        handle.remove()
        assert_close(layer(z), plain(z.double()))
    assert len(seen) == 1 and taken == ["evaluate"]


def test_environment_variable_disables_the_fused_block(monkeypatch, taken):
    layer, z = hb.Hamburger(24, rank=5, steps=1), images()
    monkeypatch.setenv("HAM_BACKEND", "plain")
    layer(z)
    assert not taken
    monkeypatch.setenv("HAM_BACKEND", "fused")
    layer(z)
    assert taken == ["train"]
