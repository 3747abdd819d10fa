"""The Hamburger as one fused block on a CUDA device, against the plain layer in float64."""

from __future__ import annotations

import contextlib
import copy
import threading

import pytest
import torch
from tolerances import RELATIVE, assert_close, relative_error

import hamburger as hb
from hamburger.kernels import cuda_graphs, launcher
from hamburger.layers import fused_block

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")

HAMS = {
    "nmf": {"ham": "nmf"},
    "vq": {"ham": "vq", "temperature": 0.1},
    "vq-constant-norms": {"ham": "vq", "temperature": 0.1, "constant_norms": True},
    "cd": {"ham": "cd", "temperature": 0.1},
}
NAMES = ["nmf", "vq", "cd"]
# what autocast is asked for, and what the input is
PRECISIONS = {
    "float32": (None, torch.float32),
    "bf16 autocast": (torch.bfloat16, torch.bfloat16),
    "bf16 autocast of float32": (torch.bfloat16, torch.float32),
    "fp16 autocast": (torch.float16, torch.float16),
}


@pytest.fixture(autouse=True)
def settings():
    """Use full float32, and fill uninitialised memory with NaN."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def taken(monkeypatch):
    """Which of the block's three ways was taken, call by call."""
    calls = []

    def spied(way, original):
        return lambda *a, **k: (calls.append(way), original(*a, **k))[1]

    for way in ("context", "evaluate", "train"):
        monkeypatch.setattr(fused_block, way, spied(way, getattr(fused_block, way)))
    return calls


def build(name="nmf", channels=64, **options):
    options = {"rank": 8, "init": "fixed", "version": "v1", **HAMS[name], **options}
    layer = hb.Hamburger(channels, backend="fused", **options).cuda()
    if isinstance(layer.norm, torch.nn.BatchNorm1d):
        for t in (layer.norm.weight, layer.norm.bias, layer.norm.running_mean, layer.norm.running_var):
            t.data = torch.rand_like(t) + 0.2
    return layer


def plain(layer):
    twin = copy.deepcopy(layer)
    twin.ham.backend = "plain"
    return twin


def autocast(dtype):
    return contextlib.nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)


def step(layer, z, cast=None):
    """The output, the gradients of the input and of every parameter, and the buffers."""
    layer.zero_grad()
    z = z.detach().requires_grad_()
    with autocast(cast):
        y = layer(z)
    weight = torch.linspace(0, 9, y.numel(), device="cuda").sin().view(y.shape)
    (y.double() * weight).sum().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters()}
    return {"y": y, "z": z.grad, **gradients, **{k: b.double() for k, b in layer.named_buffers()}}


def no_worse(actual, rounded, exact, dtype, slack=1.5):
    """As near to float64 as the plain layer in the same precision, up to what one more rounding may add."""
    scale = exact["y"].norm()
    for key, value in exact.items():
        if value.norm() < 1e-9 * scale:  # a gradient that a norm makes zero
            assert actual[key].norm() < 1e-3 * scale, key
            continue
        allowed = slack * relative_error(rounded[key], value) + RELATIVE[dtype]
        assert relative_error(actual[key], value) < allowed, key


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", HAMS)
def test_outputs_gradients_and_statistics(name, precision, b, train, taken):
    cast, dtype = PRECISIONS[precision]
    layer = build(name, inner=48).train(train)
    twin, exact = plain(layer), plain(layer).double()
    z = torch.randn(b, 64, 25, 40, device="cuda").to(dtype)
    actual, rounded, expected = step(layer, z, cast), step(twin, z, cast), step(exact, z.double())
    way = "train" if train and dtype != torch.float16 else "context"
    assert taken == [way] and actual["y"].dtype == dtype
    no_worse(actual, rounded, expected, cast or dtype)
    with torch.no_grad(), autocast(cast):
        y, other = layer.eval()(z), twin.eval()(z)
    assert taken == [way, "evaluate"]
    no_worse({"y": y}, {"y": other}, {"y": exact.eval()(z.double())}, cast or dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_cast_to_half(name, dtype):
    layer = build(name).to(dtype).eval()
    z = torch.randn(2, 64, 1000, device="cuda", dtype=dtype)
    no_worse(step(layer, z), step(plain(layer), z), step(plain(layer).double(), z.double()), dtype)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("n", [1_024, 16_384, 20_000])
@pytest.mark.parametrize("name", NAMES)
def test_fused_block_matches_at_the_papers_size(name, n, train):
    layer = build(name, 512, rank=64).train(train)
    z = torch.randn(1, 512, n, device="cuda", dtype=torch.bfloat16)
    twin, exact = plain(layer), plain(layer).double()  # before a step moves the statistics
    results = step(layer, z, torch.bfloat16), step(twin, z, torch.bfloat16)
    no_worse(*results, step(exact, z.double()), torch.bfloat16)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("shape", [(132, 64, 64), (140, 256, 200), (1, 2_048, 300)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_many_images_and_many_channels(name, shape, train):
    """As many images as multiprocessors, each with counters; a gradient of more tiles than a grid axis holds."""
    b, c, n = shape
    layer = build(name, c, rank=32).train(train)
    torch.empty(2**28, dtype=torch.uint8, device="cuda").fill_(0xFF)  # what is taken now has held something else
    z = torch.randn(b, c, n, device="cuda", dtype=torch.bfloat16)
    twin, exact = plain(layer), plain(layer).double()
    results = step(layer, z, torch.bfloat16), step(twin, z, torch.bfloat16)
    no_worse(*results, step(exact, z.double()), torch.bfloat16)


@pytest.mark.parametrize("precision", ["float32", "bf16 autocast"])
@pytest.mark.parametrize("name", NAMES)
def test_training_covers_several_tiles_in_every_dimension(name, precision):
    cast, dtype = PRECISIONS[precision]
    layer = build(name, 200, inner=300, rank=130).train()
    z = torch.randn(3, 200, 3_001, device="cuda").to(dtype)
    twin, exact = plain(layer), plain(layer).double()
    results = step(layer, z, cast), step(twin, z, cast)
    no_worse(*results, step(exact, z.double()), cast or dtype)


@pytest.mark.parametrize("name", NAMES)
def test_tf32_subtracts_means_exactly(name):
    """Codes have means far above their spread: the mean must not be rounded to eleven bits before it is subtracted."""
    torch.backends.cuda.matmul.allow_tf32 = True
    layer = build(name, 256, rank=32).train()
    z = torch.randn(2, 256, 3_000, device="cuda")
    twin, exact = plain(layer), plain(layer).double()
    # tensor cores truncate what cuBLAS rounds, in every product of every step
    no_worse(step(layer, z), step(twin, z), step(exact, z.double()), torch.bfloat16, slack=6)


@pytest.mark.parametrize("name", NAMES)
def test_channels_last(name):
    layer = build(name).eval()
    z = torch.randn(2, 64, 25, 41, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        y = layer(z)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert_close(y, layer(z.contiguous()), slack=5)
    actual, expected = step(layer, z), step(plain(layer), z)
    for key, value in expected.items():
        assert_close(actual[key].double(), value.double(), dtype=torch.float32, slack=5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_twenty_times(name, precision):
    cast, dtype = PRECISIONS[precision]
    layer = build(name, 512, rank=64, norm="none").train()
    z = torch.randn(2, 512, 1001, device="cuda").to(dtype)
    first = step(layer, z, cast)
    for _ in range(19):
        again = step(layer, z, cast)
        assert all(torch.equal(again[key], value) for key, value in first.items())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", NAMES)
def test_call_never_synchronises(name):
    layer, z = build(name, init="random").train(), torch.randn(2, 64, 1000, device="cuda", requires_grad=True)

    def call():
        layer.train()(z).mean().backward()
        with torch.no_grad():
            layer.eval()(z)

    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_saved_for_backward():
    """Saved: z, the codes and their ratio, and the output; neither D C nor u."""
    n, d, r = 65_536, 512, 64
    layer = build("nmf", d, rank=r, norm="none").train()
    z = torch.randn(1, d, n, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def held():
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = layer(z)
        return torch.cuda.memory_allocated() - before, y

    held()[1].sum().backward()
    assert held()[0] < 2 * (2 * n * d + 2 * n * r) + 2**22


@pytest.mark.parametrize("name", NAMES)
def test_captured_in_a_cuda_graph(name):
    layer = build(name, 256, rank=32).eval()
    x = torch.randn(2, 256, 33, 31, device="cuda", dtype=torch.bfloat16)
    static = x.clone()

    def call():
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            return layer(static)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # compile, make handles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    static.copy_(x.flip(2))
    graph.replay()
    actual = captured.clone()
    assert torch.equal(actual, call())


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_cached_launches_give_the_same_bits(name, b, train, monkeypatch):
    """The first call records its launches, later calls repeat them or replay a CUDA graph of them."""
    layer = build(name, 256, rank=32).train(train)
    z = torch.randn(b, 256, 33, 32, device="cuda", dtype=torch.bfloat16)
    graphs = use_new_caches(monkeypatch)

    def call():
        if train:
            actual = step(layer, z, torch.bfloat16)
            return {key: value for key, value in actual.items() if "running" not in key and "tracked" not in key}
        with torch.no_grad(), autocast(torch.bfloat16):
            return {"y": layer(z)}

    first = {key: value.clone() for key, value in call().items()}
    assert any(launcher._cache.values())
    for _ in range(20):
        again = call()
        assert all(torch.equal(again[key], value) for key, value in first.items())
        del again  # so that addresses repeat
    assert graphs
    z.copy_(z.flip(1))
    replayed = {key: value.clone() for key, value in call().items()}
    assert not torch.equal(replayed["y"], first["y"])
    graphs.clear()
    launched = call()
    assert all(torch.equal(launched[key], value) for key, value in replayed.items())


def use_new_caches(monkeypatch):
    """Start with empty caches; returns the graphs by key."""
    cache = cuda_graphs.GraphCache()
    monkeypatch.delenv(cuda_graphs.REPLAY_VARIABLE, raising=False)
    monkeypatch.setattr(launcher, "_cache", {})
    monkeypatch.setattr(launcher, "graph_cache", cache)
    return cache.graphs


def test_replay_during_a_capture_in_another_thread(monkeypatch):
    """With capture_error_mode="thread_local": during a global capture torch may not allocate in any thread."""
    graphs = use_new_caches(monkeypatch)
    layer = build("nmf", 256, rank=32).eval()
    z = torch.randn(1, 256, 33, 32, device="cuda", dtype=torch.bfloat16)
    begun, over, sums = threading.Event(), threading.Event(), []

    def call():
        with torch.no_grad(), autocast(torch.bfloat16):
            return layer(z)

    def capture():
        graph, x = torch.cuda.CUDAGraph(), torch.ones(8, device="cuda")
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                y = x * 3
                begun.set()
                over.wait(30)
            graph.replay()
            sums.append(y.sum().item())
        finally:
            begun.set()

    expected = call().clone()
    call()  # allocates the memory of the calls below
    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(30)
    try:
        equal = [torch.equal(call(), expected) for _ in range(10)]
    finally:
        over.set()
        thread.join()
    assert all(equal) and sums == [24.0] and graphs


def test_graphs_are_dropped_while_they_run(monkeypatch):
    graphs = use_new_caches(monkeypatch)
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 2)
    layer = build("nmf", 256, rank=32).eval()
    inputs = [torch.randn(1, 256, n, device="cuda", dtype=torch.bfloat16) for n in (3_000, 5_000, 7_000, 9_000)]

    def call_all():
        with torch.no_grad(), autocast(torch.bfloat16):
            return [layer(z) for z in inputs]

    expected = [y.clone() for y in call_all()]
    for _ in range(12):
        assert all(torch.equal(a, b) for a, b in zip(call_all(), expected, strict=True))
    assert len(graphs) <= 2


@pytest.mark.filterwarnings("ignore")  # inductor's advice
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_by_inductor(name, train):
    layer = build(name, norm="none").train(train)
    torch._dynamo.reset()
    fast = torch.compile(layer, fullgraph=True)
    z = torch.randn(2, 64, 33, 31, device="cuda", requires_grad=True)
    for cast in (None, torch.bfloat16):
        with autocast(cast):
            ys = layer(z), fast(z)
        (a, da), (b, db) = ((y, torch.autograd.grad(y.square().sum(), z)[0]) for y in ys)
        assert_close(b, a, slack=10, dtype=cast)
        assert_close(db, da, slack=10, dtype=cast)


def test_addresses_beyond_32_bits():
    layer = build("nmf", 512, steps=1).eval()
    z = torch.randn(5, 512, 1_048_576, device="cuda", dtype=torch.bfloat16)  # 2.7e9 entries
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        last = layer(z)[4:].clone()
        assert_close(last, layer(z[4:]))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_of_any_scale_stays_finite(name, scale):
    layer = build(name).train()
    z = (torch.randn(2, 64, 1000, device="cuda") * scale).half().requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        y = layer(z)
    y.float().square().mean().div(max(1.0, scale)).backward()
    assert y.isfinite().all() and z.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        assert layer.eval()(z).isfinite().all()


@pytest.mark.parametrize("ham", ["nmf", "vq", "cd"])
def test_a_training_step_as_a_cuda_graph(ham):
    """torch.cuda.make_graphed_callables: the values and gradients of the layer, whatever was captured before."""
    torch.manual_seed(0)
    layer = hb.Hamburger(64, ham=ham, rank=8, init="fixed").cuda().train()
    plain = copy.deepcopy(layer)
    sample = torch.randn(2, 64, 15, 17, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn_like(sample)
        results = []
        for module in (graphed, plain):
            z = x.clone().requires_grad_()
            y = module(z)
            parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
            results.append([y, *torch.autograd.grad(y.square().sum(), [z, *parameters])])
        for actual, expected in zip(*results, strict=True):
            assert_close(actual, expected)
