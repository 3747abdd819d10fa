"""Cached launches repeated on other memory. Here Python functions write through addresses, as kernels do."""

from __future__ import annotations

import ctypes

import pytest
import torch

pytest.importorskip("triton")
from hamburger.kernels import launcher
from hamburger.kernels.cuda_graphs import GraphCache
from hamburger.kernels.launcher import KernelLaunch, PackedTensors, pack_tensors


def floats(address, count):
    return (ctypes.c_float * count).from_address(address)


class Adds:
    """out = left + right, `count` numbers. Arguments are tensors at first, addresses in the launch cache."""

    def __call__(self, out, left, right, count):
        out, left, right = (a if isinstance(a, int) else a.data_ptr() for a in (out, left, right))
        floats(out, count)[:] = [a + b for a, b in zip(floats(left, count), floats(right, count), strict=True)]


ADDS = Adds()


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(launcher, "launch_compiled", lambda program, grid, args, stream: program(*args))
    monkeypatch.setattr(launcher, "current_stream", lambda: 0)
    monkeypatch.setattr(launcher, "_cache", {})
    monkeypatch.setattr(launcher, "is_capturing", lambda: False)
    monkeypatch.setattr(launcher, "graph_cache", GraphCache())


def launch(*args):
    ADDS(*args)
    if launcher.recorder.launches is not None:
        launcher.recorder.launches.append(KernelLaunch(ADDS, (1, 1, 1), args))


def solve(x, y, none):
    """3 x + 2 y, by way of memory in between, and x + y, transposed."""
    assert none is None
    a, b, c = (torch.empty(6) for _ in range(3))
    both, out = torch.empty(2, 3), torch.empty(8)[2:]
    launch(both, x, y, 6)
    launch(a, both, both, 6)
    launch(b, x, a, 6)
    launch(c, b, b, 6)  # b and c never need a's place at the same time as a
    launch(out, b, torch.empty(0), 0)
    launch(out, b, a, 6)
    launch(out, b, x.new_empty(6), 6)
    launch(out, b, a, 0)
    launch(out, a, x, 6)
    return out, both.mT


def recorded(solve, inputs):
    """Record a solve that saves nothing for backward."""
    return launcher.record_launches(lambda *inputs: (solve(*inputs), ()), inputs)


def test_cached_launches_run_with_new_addresses():
    x, y = torch.rand(6), torch.rand(6)
    actual, _, made = recorded(solve, (x, y, None))
    assert torch.allclose(actual[0], 3 * x + 2 * y)
    x, y = torch.rand(6), torch.rand(6)
    for _ in range(3):
        (out, both), _ = made.play((x.data_ptr(), y.data_ptr(), 0), x.device)
        assert torch.allclose(out, 3 * x + 2 * y)
        assert torch.allclose(both, (x + y).view(2, 3).T) and both.stride() == (1, 3)
    assert made.workspace > 0


def test_buffers_are_reused_but_not_shared():
    x, first, second, third = torch.rand(200), *(torch.empty(200) for _ in range(3))
    launches = [
        KernelLaunch(None, (1, 1, 1), (first, x)),
        KernelLaunch(None, (1, 1, 1), (second, first)),
        KernelLaunch(None, (1, 1, 1), (third, second)),
    ]
    places, size = launcher._plan_workspace(launches, {x.data_ptr()})
    assert places[first.data_ptr()] == places[third.data_ptr()] != places[second.data_ptr()]
    assert size == 2 * 1024


def test_workspace_reuses_memory_of_finished_tensors():
    big, small, other = torch.empty(1000), torch.empty(10), torch.empty(500)
    together = [KernelLaunch(None, (1, 1, 1), (big, other)), KernelLaunch(None, (1, 1, 1), (other, small))]
    places, size = launcher._plan_workspace(together, ())
    assert len(set(places.values())) == 2 and size == 4096 + 2048


def test_torch_operations_prevent_caching():
    def with_torch(x):
        out = torch.empty(6)
        launch(out, x, x * 2, 6)
        return (out,)

    x = torch.rand(6)
    (out,), _, made = recorded(with_torch, (x,))
    assert made is None and torch.allclose(out, 3 * x)
    assert launcher.recorder.launches is None


def test_views_of_inputs_prevent_caching():
    def middle(x):
        out = torch.empty(3)
        launch(out, x[3:], x[3:], 3)
        return (out,)

    assert recorded(middle, (torch.rand(6),))[2] is None


def test_error_ends_the_recording():
    def fails(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorded(fails, (torch.rand(6),))
    assert launcher.recorder.launches is None


class OnGpu(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    is_cuda = True

    def get_device(self):
        return 0


def on_gpu(values):
    return torch.as_tensor(values, dtype=torch.float32).as_subclass(OnGpu)


def test_cache_key_groups_equal_calls():
    calls = []

    def counted(x, y):
        calls.append(len(x))
        out = torch.empty(len(x))
        launch(out, x, y, len(x))
        return (out,)

    def play(x, y, *key):
        (out,) = launcher.launch_cached(counted, (x, y), *key)
        assert torch.allclose(torch.Tensor(out), torch.Tensor(x + y))

    x, y = on_gpu(torch.rand(6)), on_gpu(torch.rand(6))
    play(x, y, "a")
    play(x, y, "a")
    play(on_gpu(torch.rand(6)), y, "a")
    assert calls == [6]
    play(x, y, "b")  # other key
    play(on_gpu(torch.rand(5)), on_gpu(torch.rand(5)), "a")  # another size
    assert calls == [6, 6, 5]
    play(x, x, "a")  # one tensor twice: which address is whose?
    assert calls == [6, 6, 5, 6]
    away = on_gpu(torch.rand(6))
    away.get_device = lambda: 1
    play(x, away, "a")  # moved by the caller
    assert calls == [6, 6, 5, 6, 6]


def test_cache_key_has_sizes_strides_dtypes_and_options():
    whole, seen = on_gpu(torch.rand(4, 6)), []
    others = whole[:3], whole.mT, on_gpu(torch.rand(24))[1:7].view(1, 6), whole[1:2]

    def counted(x):
        seen.append(x)
        return (torch.empty(1),)

    for x in (whole, *others, on_gpu(torch.rand(4, 6)), whole):
        launcher.launch_cached(counted, (x,))
    assert len(seen) == 5


def forward(x, y):
    """x + y, and what `backward` looks at: 2 (x + y), nothing, and 3 x + 2 y, transposed."""
    out, twice, more = torch.empty(6), torch.empty(6), torch.empty(2, 3)
    launch(out, x, y, 6)
    launch(twice, out, out, 6)
    launch(more, twice, x, 6)
    return (out,), (twice, torch.empty(0, dtype=torch.bfloat16), more.mT)


def test_saved_tensors_are_packed_and_passed_to_backward():
    calls = []

    def step(x, y):
        def ahead(x, y):
            calls.append("forward")
            return forward(x, y)

        def backward(x, *of_bundle):
            calls.append("backward")
            twice, nothing, more = PackedTensors(of_bundle, kept.layout).tensors()
            assert nothing.shape == (0,) and more.shape == (3, 2) and more.stride() == (1, 3)
            out = torch.empty(6)
            launch(out, twice, more, 6)
            launch(out, out, x, 6)
            return (out,)

        (out,), kept = launcher.launch_cached_saving(ahead, (x, y), "forward")
        (back,) = launcher.launch_cached(
            backward, (x, *(t.as_subclass(OnGpu) for t in kept.memory)), "backward", kept.layout
        )
        return torch.Tensor(out), kept, torch.Tensor(back)

    for _ in range(3):
        x, y = on_gpu(torch.rand(6)), on_gpu(torch.rand(6))
        out, kept, back = step(x, y)
        assert len(kept.memory) == 1
        x, y = torch.Tensor(x), torch.Tensor(y)
        assert torch.allclose(out, x + y)
        assert torch.allclose(back, 6 * x + 4 * y)
        twice, _, more = kept.tensors()
        assert torch.allclose(twice, 2 * out) and torch.allclose(more, (3 * x + 2 * y).view(2, 3).T)
    assert calls == ["forward", "backward"]


def test_packed_tensors_may_be_restored_at_an_offset():
    first = pack_tensors([torch.rand(6), torch.rand(6)])
    (memory,), layout = first.memory, first.layout

    def backward(dy, memory):
        left, right = PackedTensors((memory,), layout).tensors()
        out = torch.empty(6)
        launch(out, left, right, 6)
        return (out,)

    staged = torch.zeros(3 * len(memory), dtype=torch.uint8)[512:][: len(memory)].copy_(memory)
    dy, expected = torch.rand(6), sum(first.tensors())
    (out,), _, made = recorded(backward, (dy, staged))
    assert torch.allclose(out, expected)
    (out,), _ = made.play((dy.data_ptr(), memory.data_ptr()), dy.device)
    assert torch.allclose(out, expected)


def test_outputs_that_share_memory_prevent_caching():
    def shared(x):
        both = torch.empty(12)
        launch(both[:6], x, x, 6)
        launch(both[6:], x, x, 6)
        return both[:6], both[6:]

    def view_of_input(x):
        launch(x, x, x, 6)
        return (x.view(2, 3),)

    assert recorded(shared, (torch.rand(6),))[2] is None
    assert recorded(view_of_input, (torch.rand(6),))[2] is None


def test_saved_tensors_that_share_memory_are_not_packed():
    def shared(x):
        both = torch.empty(12)
        launch(both[:6], x, x, 6)
        launch(both[6:], x, x, 6)
        return (), (both[:6], both[6:])

    _, kept, made = launcher.record_launches(shared, (torch.rand(6),))
    assert made is None and kept.layout is None and len(kept.tensors()) == 2


def test_cache_size_is_bounded(monkeypatch):
    monkeypatch.setattr(launcher, "MAX_CACHED", 2)
    for n in range(1, 6):
        x, y = on_gpu(torch.rand(n)), on_gpu(torch.rand(n))
        launcher.launch_cached(lambda x, y: (torch.empty(1),), (x, y))
    assert len(launcher._cache) <= 2
