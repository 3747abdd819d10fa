"""The fused kernels on a CUDA device: values and gradients against float64, bits, streams, graphs, compilation."""

from __future__ import annotations

import itertools

import pytest
import torch
from tolerances import RELATIVE, assert_close, relative_error

import hamburger as hb

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")

HAMS = {
    "nmf": lambda r: hb.NMF(r),
    "vq": lambda r: hb.VQ(r, temperature=0.1),
    "vq-constant-norms": lambda r: hb.VQ(r, temperature=0.1, constant_norms=True),
    "cd": lambda r: hb.CD(r, temperature=0.1),
}
NAMES = ["nmf", "vq", "cd"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
#         b  d     n      r    K
SHAPES = [
    (1, 512, 16384, 64, 6),
    (2, 512, 4225, 64, 6),
    (3, 100, 1000, 20, 3),
    (1, 24, 63, 5, 2),
    (2, 8, 1, 8, 2),
    (1, 256, 9999, 200, 2),
    (1, 1024, 2049, 512, 2),
    (64, 64, 129, 8, 2),
    (70_000, 8, 3, 8, 1),  # more samples than a grid has rows
    (1, 512, 300, 64, 0),
    # in bfloat16 on a Hopper GPU these, and most above, are one launch
    (1, 512, 4095, 64, 6),
    (3, 500, 1001, 50, 3),
    (1, 256, 2001, 128, 2),
    (1, 512, 16000, 100, 2),
    (2, 512, 100, 64, 2),
    # and these one pass over x per step
    (1, 512, 20000, 64, 6),
    (2, 512, 40001, 50, 2),
    (1, 256, 70000, 128, 1),
    (40, 500, 1024, 64, 2),
    (140, 128, 200, 64, 3),  # several launches, for not all images fit on the GPU at once
]


@pytest.fixture(autouse=True)
def settings():
    """Use full float32, and fill uninitialised memory with NaN."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32 = before


def problem(name, shape, dtype=torch.float32):
    b, d, n, r, _ = shape
    ham = HAMS[name](r)
    x = torch.randn(b, d, n, device="cuda")
    return ham, (x.abs() if ham.nonnegative else x).to(dtype), ham.draw(b, d, like=torch.empty(0, device="cuda"))


def solve(ham, x, bases, steps, backend, cotangents):
    x = x.detach().requires_grad_()
    out = hb.decompose(
        x, ham, steps=steps, bases=bases.to(torch.promote_types(x.dtype, torch.float32)), backend=backend
    )
    loss = sum((value.double() * c).sum() for value, c in zip((out.codes, out.reconstruction), cotangents, strict=True))
    return out, torch.autograd.grad(loss, x)[0]


def compare(ham, x, bases, steps, dtype):
    b, d, n = x.shape
    cotangents = torch.randn(b, ham.rank, n, device="cuda").double(), torch.randn(b, d, n, device="cuda").double()
    expected, slope = solve(ham, x.double(), bases, steps, "plain", cotangents)
    actual, gradient = solve(ham, x, bases, steps, "fused", cotangents)
    for value, reference in zip(actual, expected, strict=True):
        assert_close(value, reference, dtype=dtype)
    if slope.norm() > 1e-9:
        assert_close(gradient, slope, dtype=dtype, slack=2)  # a difference of codes: the error of both
    return actual


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", HAMS)
def test_values_and_gradients(name, shape, dtype):
    compare(*problem(name, shape, dtype), shape[-1], dtype)


@pytest.mark.parametrize("name", NAMES)
def test_tf32_follows_torchs_flag(name):
    ham, x, bases = problem(name, SHAPES[1])
    exact = hb.decompose(x, ham, bases=bases, backend="fused").reconstruction
    torch.backends.cuda.matmul.allow_tf32 = True
    short = hb.decompose(x, ham, bases=bases, backend="fused").reconstruction
    assert not torch.equal(exact, short)
    assert_close(short, exact, dtype=torch.float16)


@pytest.mark.parametrize("name", NAMES)
def test_low_temperature_softmax_in_bfloat16(name):
    """At the default temperature plain float32 and the kernels still agree to what the output can hold."""
    _, x, bases = problem(name, (1, 512, 4096, 64, 6), torch.bfloat16)
    ham = hb.hams[name](rank=64)
    expected = hb.decompose(x.double(), ham, bases=bases.double(), backend="plain").reconstruction
    assert_close(hb.decompose(x, ham, bases=bases, backend="fused").reconstruction, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 512, 4225, 64, 6), (1, 512, 16384, 64, 6), (3, 500, 1001, 50, 6), (1, 512, 20000, 64, 6)], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_hundred_calls_give_equal_bits(name, shape, dtype):
    ham, x, bases = problem(name, shape, dtype)
    b, _, n, r, _ = shape
    cotangents = torch.randn(b, r, n, device="cuda"), torch.randn_like(x)
    first, slope = solve(ham, x, bases, 6, "fused", cotangents)
    for _ in range(99):
        again, gradient = solve(ham, x, bases, 6, "fused", cotangents)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))
        assert torch.equal(gradient, slope)


@pytest.mark.parametrize("name", NAMES)
def test_any_strides(name):
    for shape in ((2, 96, 1001, 20, 2), (2, 512, 1024, 64, 2), (2, 200, 300, 128, 2)):
        ham, x, bases = problem(name, shape, torch.bfloat16)
        wide = torch.stack([x, x * 0], dim=-1)[..., 0]
        for view in (x.mT.contiguous().mT, wide, x[:1].expand(2, -1, -1)):
            compare(ham, view, bases, 2, torch.bfloat16)


def with_and_without(variant, name, ham, x, bases, steps, monkeypatch):
    """Return the solution of a variant (`resident_grid` or `streaming_grid`) and of the next one on this GPU."""
    from hamburger.kernels import cd, launcher, nmf, vq

    module, grids = {"nmf": nmf, "vq": vq, "cd": cd}[name], []
    choose = getattr(module, variant)
    monkeypatch.setattr(module, variant, lambda *grid_args: grids.append(choose(*grid_args)) or grids[-1])
    monkeypatch.setattr(launcher, "_cache", {})  # else an earlier call's launches would be repeated
    one = hb.decompose(x, ham, steps=steps, bases=bases, backend="fused")
    if not grids or grids[-1] is None:
        pytest.skip("this GPU uses another variant")
    monkeypatch.setattr(module, variant, lambda *_: None)
    monkeypatch.setattr(launcher, "_cache", {})
    return one, hb.decompose(x, ham, steps=steps, bases=bases, backend="fused")


@pytest.mark.parametrize("shape", [(1, 512, 4096, 64, 6), (2, 512, 999, 50, 3), (1, 200, 999, 128, 2)], ids=str)
def test_resident_and_tiled_agree(shape, monkeypatch):
    ham, x, bases = problem("nmf", shape, torch.bfloat16)
    one, several = with_and_without("resident_grid", "nmf", ham, x, bases, shape[-1], monkeypatch)
    for a, b in zip(one, several, strict=True):
        assert_close(a, b, dtype=torch.bfloat16, slack=2)  # the error of both


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 512, 1024, 64, 6),
        (1, 512, 16384, 64, 6),
        (1, 512, 65536, 64, 6),
        (2, 512, 40001, 50, 2),
        (1, 256, 70000, 128, 2),
        (40, 500, 1024, 64, 2),
        (140, 128, 200, 64, 3),  # several launches, for not all images fit on the GPU at once
        (150, 100, 200, 20, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", NAMES)
def test_streaming_and_tiled_agree(name, shape, channels_last, monkeypatch):
    ham, x, bases = problem(name, shape, torch.bfloat16)
    x = x.mT.contiguous().mT if channels_last else x
    one, two = with_and_without("streaming_grid", name, ham, x, bases, shape[-1], monkeypatch)
    for a, b in zip(one, two, strict=True):
        assert_close(a, b, dtype=torch.bfloat16, slack=2)  # the error of both


@pytest.mark.parametrize("shape", [(1, 512, 65536, 64, 6), (40, 500, 1024, 64, 2), (3, 256, 20001, 100, 2)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_streaming_gives_equal_bits(name, shape):
    ham, x, bases = problem(name, shape, torch.bfloat16)
    first, *others = (hb.decompose(x, ham, steps=shape[-1], bases=bases, backend="fused") for _ in range(20))
    assert all(torch.equal(a, b) for again in others for a, b in zip(again, first, strict=True))


@pytest.mark.parametrize("beta", [0.1, 0.01, 0.001, 0.0])
def test_streaming_cd_supports_any_ridge(beta):
    """From 0.01 on our kernel solves, below it torch."""
    _, x, bases = problem("cd", (2, 512, 20_000, 64, 3), torch.bfloat16)
    compare(hb.CD(64, temperature=0.1, beta=beta), x, bases, 3, torch.bfloat16)


@pytest.mark.parametrize("name", ["vq", "cd"])
def test_streaming_low_temperature_softmax(name):
    _, x, bases = problem(name, (1, 512, 40_000, 64, 6), torch.bfloat16)
    ham = hb.hams[name](rank=64)
    expected = hb.decompose(x.double(), ham, bases=bases.double(), backend="plain").reconstruction
    assert_close(hb.decompose(x, ham, bases=bases, backend="fused").reconstruction, expected)


@pytest.mark.parametrize("rank", [50, 64])
@pytest.mark.parametrize("n", [1001, 16384, 20000])
@pytest.mark.parametrize("name", ["vq", "cd"])
def test_nan_stays_in_its_sample(name, n, rank):
    b = 1 if n == 16384 else 2
    ham, x, bases = problem(name, (b, 512, n, rank, 2), torch.bfloat16)
    x[0, 3, 70] = torch.nan
    for value in hb.decompose(x, ham, steps=2, bases=bases, backend="fused"):
        assert value[0].isnan().all() and value[1:].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_million_positions(name):
    ham, x, bases = problem(name, (1, 64, 1_048_575, 8, 1))
    expected = hb.decompose(x.double(), ham, steps=1, bases=bases.double(), backend="plain")
    actual = hb.decompose(x, ham, steps=1, bases=bases, backend="fused")
    for value, reference in zip(actual, expected, strict=True):
        assert_close(value, reference)


@pytest.mark.parametrize("name", NAMES)
def test_addresses_beyond_32_bits(name):
    x = torch.rand(5, 512, 1_048_576, device="cuda", dtype=torch.bfloat16)  # 2.7e9 entries
    ham = HAMS[name](8)
    bases = ham.draw(5, 512, like=torch.empty(0, device="cuda"))
    out = hb.decompose(x, ham, steps=1, bases=bases, backend="fused")
    alone = hb.decompose(x[4:], ham, steps=1, bases=bases[4:], backend="fused")
    assert_close(out.reconstruction[4:], alone.reconstruction)  # another number of partial sums, other last bits


@pytest.mark.filterwarnings("ignore")  # inductor's advice
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_by_inductor(name, train):
    ham = HAMS[name](8)
    layer = hb.Hamburger(64, ham=ham, init="fixed", norm="none", backend="fused").cuda().train(train)
    fast = torch.compile(layer, fullgraph=True)
    z = torch.randn(2, 64, 33, 31, device="cuda", requires_grad=True)
    (a, da), (b, db) = ((y, torch.autograd.grad(y.square().sum(), z)[0]) for y in (layer(z), fast(z)))
    assert_close(b, a, slack=10)  # the breads are compiled as well
    assert_close(db, da, slack=10)


@pytest.mark.parametrize("name", NAMES)
def test_captured_in_a_cuda_graph(name):
    ham, x, bases = problem(name, (2, 256, 1001, 32, 6), torch.bfloat16)
    static = x.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        hb.decompose(static, ham, bases=bases, backend="fused")  # compile, make handles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        captured = hb.decompose(static, ham, bases=bases, backend="fused")
    static.copy_(x.flip(2))
    graph.replay()
    expected = hb.decompose(x.flip(2), ham, bases=bases, backend="fused")
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_autocast(name, scale, precision):
    fused = hb.Hamburger(64, ham=HAMS[name](8), backend="fused").cuda().eval()
    plain, exact = (hb.Hamburger(64, ham=HAMS[name](8), backend="plain").cuda().eval() for _ in range(2))
    for layer in (plain, exact):
        layer.load_state_dict(fused.state_dict())
    z = torch.randn(2, 64, 65, 63, device="cuda") * scale

    def run(layer, z):
        z.requires_grad_()
        y = layer(z)
        return y, torch.autograd.grad(y.square().mean(), z)[0]

    with torch.autocast("cuda", dtype=precision):
        actual, rounded = run(fused, z), run(plain, z)
    for value, other, reference in zip(actual, rounded, run(exact.double(), z.double()), strict=True):
        assert relative_error(value, reference) < 1.5 * relative_error(other, reference) + RELATIVE[precision]


@pytest.mark.parametrize("name", NAMES)
def test_cuda_streams_are_independent(name):
    problems = [problem(name, (1, 256, 3001, 32, 6), torch.bfloat16) for _ in range(4)]
    expected = [hb.decompose(x, ham, bases=bases, backend="fused") for ham, x, bases in problems]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in problems]
    outputs = []
    for _, (stream, (ham, x, bases)) in itertools.product(range(5), zip(streams, problems, strict=True)):
        with torch.cuda.stream(stream):
            outputs.append(hb.decompose(x, ham, bases=bases, backend="fused"))
    torch.cuda.synchronize()
    for i, out in enumerate(outputs):
        assert all(torch.equal(a, b) for a, b in zip(out, expected[i % 4], strict=True))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", NAMES)
def test_call_never_synchronises(name):
    ham, x, bases = problem(name, (2, 64, 1000, 8, 3))
    x.requires_grad_()
    hb.decompose(x, ham, bases=bases, backend="fused").reconstruction.sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        hb.decompose(x, ham, bases=bases, backend="fused").reconstruction.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", NAMES)
def test_peak_memory_is_at_most_one_more_x(name):
    """Besides X: Y, the codes and what does not grow with n."""
    ham, x, bases = problem(name, (1, 512, 65536, 64, 6), torch.bfloat16)
    with torch.no_grad():
        hb.decompose(x, ham, bases=bases, backend="fused")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        hb.decompose(x, ham, bases=bases, backend="fused")
    codes = 65536 * 64 * 4
    assert torch.cuda.max_memory_allocated() - before < x.numel() * 2 + codes + 24 * 2**20
