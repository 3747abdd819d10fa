"""Capture through the driver, and when launches are captured and replayed. A Python object stands for the driver."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

pytest.importorskip("triton")
from hamburger.kernels import cuda_graphs
from hamburger.kernels.cuda_graphs import CALLS_BEFORE_CAPTURE, MAX_COUNTED, MAX_FAILURES, MAX_GRAPHS, GraphCache

CREATED = {"cuStreamCreate": "stream", "cuStreamEndCapture": "graph", "cuGraphInstantiateWithFlags": "executable"}
DESTROYED = {"cuStreamDestroy_v2": "stream", "cuGraphDestroy": "graph", "cuGraphExecDestroy": "executable"}
HANDLES = {"stream": 11, "graph": 22, "executable": 33}


class Driver:
    """Creates the handles above, and records which are not destroyed yet."""

    def __init__(self, refuses=None):
        self.refuses, self.alive, self.calls = refuses, [], []

    def __getattr__(self, name):
        def function(*args):
            self.calls.append(name)
            if name == self.refuses:
                return 1
            if name in CREATED:
                pointer = args[0] if name != "cuStreamEndCapture" else args[1]
                ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = HANDLES[CREATED[name]]
                self.alive.append(CREATED[name])
            if name in DESTROYED:
                handle = args[0].value if isinstance(args[0], ctypes.c_void_p) else args[0]
                assert handle == HANDLES[DESTROYED[name]]
                self.alive.remove(DESTROYED[name])
            if name == "cuGraphLaunch":
                assert args == (33, 5)
            return 0

        return function


def use_driver(monkeypatch, refuses=None):
    driver = Driver(refuses)
    monkeypatch.setattr(cuda_graphs, "load_driver", lambda: driver)
    return driver


def test_capture_replay_and_destroy(monkeypatch):
    driver, streams = use_driver(monkeypatch), []
    graph = cuda_graphs.capture(streams.append)
    assert streams == [11] and driver.alive == ["executable"]
    assert graph.replay(5)
    del graph
    assert driver.alive == []


def test_exit_frees_no_graph():
    """At exit the module's names are gone; what frees a graph would report errors for each."""
    code = """
from types import SimpleNamespace
from hamburger.kernels import cuda_graphs

driver = SimpleNamespace(cuThreadExchangeStreamCaptureMode=print, cuGraphExecDestroy=print)
cuda_graphs.graph_cache.graphs["key"] = cuda_graphs.CudaGraph(driver, 33)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout + ended.stderr == ""


@pytest.mark.parametrize("refuses", [*list(cuda_graphs.ARGUMENTS)[:3], "cuGraphInstantiateWithFlags"])
def test_a_refused_capture_leaves_no_handles(refuses, monkeypatch):
    driver = use_driver(monkeypatch, refuses)
    assert cuda_graphs.capture(lambda stream: None) is None
    assert driver.alive == []


def test_a_refused_replay_is_reported(monkeypatch):
    use_driver(monkeypatch, "cuGraphLaunch")
    assert not cuda_graphs.capture(lambda stream: None).replay(5)


@pytest.mark.parametrize(("error", "raises"), [(RuntimeError, False), (KeyboardInterrupt, True)])
def test_a_failing_launch_ends_the_capture(error, raises, monkeypatch):
    driver = use_driver(monkeypatch)

    def launch_all(stream):
        raise error

    if raises:
        with pytest.raises(error):
            cuda_graphs.capture(launch_all)
    else:
        assert cuda_graphs.capture(launch_all) is None
    assert "cuStreamEndCapture" in driver.calls and driver.alive == []


def test_without_a_driver_nothing_is_captured(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "load_driver", lambda: None)
    assert cuda_graphs.capture(lambda stream: pytest.fail("launched")) is None


# -- the cache ---------------------------------------------------------------------------------------------------------


class FakeGraph:
    def __init__(self, log):
        self.log, self.works = log, True

    def replay(self, stream):
        if self.works:
            self.log.append("replayed")
        return self.works


@pytest.fixture
def log(monkeypatch):
    """What happened: "launched", "captured", "replayed"."""
    log = []

    def capture(launch_all):
        log.append("captured")
        return FakeGraph(log)

    monkeypatch.delenv(cuda_graphs.REPLAY_VARIABLE, raising=False)
    monkeypatch.setattr(cuda_graphs, "capture", capture)
    return log


def run(cache, key, log):
    """One call; returns what it did."""
    del log[:]
    cache.run(key, 7, lambda stream: log.append("launched"))
    return list(log)


def test_captured_after_some_calls_and_replayed_from_then_on(log):
    cache = GraphCache()
    calls = [run(cache, "a", log) for _ in range(CALLS_BEFORE_CAPTURE + 2)]
    assert calls[: CALLS_BEFORE_CAPTURE - 1] == [["launched"]] * (CALLS_BEFORE_CAPTURE - 1)
    assert calls[CALLS_BEFORE_CAPTURE - 1 :] == [["launched", "captured"], ["replayed"], ["replayed"]]
    assert run(cache, "b", log) == ["launched"]


def test_a_graph_that_the_driver_refuses_is_launched_one_by_one(log):
    cache = GraphCache()
    for _ in range(CALLS_BEFORE_CAPTURE):
        run(cache, "a", log)
    cache.graphs["a"].works = False
    assert run(cache, "a", log) == ["launched"]


def test_failed_captures_are_tried_a_few_times(log, monkeypatch):
    captures = []
    monkeypatch.setattr(cuda_graphs, "capture", captures.append)
    cache = GraphCache()
    for key in range(5):
        for _ in range(2 * CALLS_BEFORE_CAPTURE):
            assert run(cache, key, log) == ["launched"]
    assert len(captures) == MAX_FAILURES


def test_off_by_an_environment_variable(log, monkeypatch):
    monkeypatch.setenv(cuda_graphs.REPLAY_VARIABLE, "0")
    cache = GraphCache()
    assert [run(cache, "a", log) for _ in range(2 * CALLS_BEFORE_CAPTURE)] == [["launched"]] * 2 * CALLS_BEFORE_CAPTURE


def test_the_least_recently_used_graph_goes_first(log):
    cache = GraphCache()
    for key in range(MAX_GRAPHS):
        for _ in range(CALLS_BEFORE_CAPTURE):
            run(cache, key, log)
    assert run(cache, 0, log) == ["replayed"]  # now key 1 is the oldest
    for _ in range(CALLS_BEFORE_CAPTURE):
        run(cache, "one more", log)
    assert len(cache.graphs) == MAX_GRAPHS and 0 in cache.graphs and 1 not in cache.graphs


def test_address_sets_that_take_turns_are_captured_once(log):
    """More of them than graphs fit: capturing each again and again would cost more than launching."""
    cache, captured = GraphCache(), 0
    for _ in range(20):
        for key in range(MAX_GRAPHS + 36):
            captured += "captured" in run(cache, key, log)
    assert captured == MAX_GRAPHS + 36


def test_addresses_that_never_repeat_fill_no_memory(log):
    cache = GraphCache()
    for key in range(3 * MAX_COUNTED):
        assert run(cache, key, log) == ["launched"]
    assert len(cache.calls) <= MAX_COUNTED


def test_another_thread_may_drop_a_graph_during_its_replay(log):
    cache = GraphCache()

    class Dropped(FakeGraph):
        def replay(self, stream):
            cache.graphs.clear()
            return super().replay(stream)

    cache.graphs["a"] = Dropped(log)
    assert run(cache, "a", log) == ["replayed"]
