"""Replay cached launches as CUDA graphs where their addresses repeat.

In a loop torch's allocator returns the same memory again and again, so cached launches see the same addresses. After a
few repetitions they are captured, and later calls replay the graph: one driver call instead of up to twenty launches.
Nothing is copied and no torch memory is held. With other addresses the launches are made one by one.

The graphs are captured through the driver: torch's own graph also holds memory and random states, and launches two
further kernels at every replay to set the latter.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

import torch

RELAXED = 2  # capture mode: other captures and allocations may continue
NON_BLOCKING = 1  # stream flag: do not synchronise with the default stream, which cannot be captured
ARGUMENTS = {
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, c_ulonglong),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuThreadExchangeStreamCaptureMode": (c_void_p,),
}

CALLS_BEFORE_CAPTURE = 3  # with the same addresses: a capture costs as much as some hundred launches
MAX_GRAPHS = 64  # each takes driver memory that torch does not count
MAX_COUNTED = 1024  # keys whose calls are counted
MAX_FAILURES = 3  # captures that may fail before no more are tried
REPLAY_VARIABLE = "HAM_REPLAY"  # environment variable: 0 turns replay off

LaunchAll = Callable[[int], None]  # makes all launches on that stream


@functools.cache
def load_driver() -> Any:
    """The functions above of CUDA's driver; None where one is missing."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        for name, arguments in ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
    except (OSError, AttributeError):
        return None
    return library


@contextmanager
def relaxed_capture(driver: Any) -> Iterator[None]:
    """In this block, calls of this thread do not break captures of other threads."""
    mode = c_int(RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(byref(mode))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(byref(mode))  # the call exchanged old and new mode


class CudaGraph:
    """An instantiated graph."""

    def __init__(self, driver: Any, handle: int) -> None:
        self.driver, self.handle = driver, handle
        # not at exit, when modules are being taken apart: the driver then frees everything
        weakref.finalize(self, _destroy, driver, handle).atexit = False

    def replay(self, stream: int) -> bool:
        """Launch the graph on a stream of the current device; False where the driver refuses."""
        return not self.driver.cuGraphLaunch(self.handle, stream)


def _destroy(driver: Any, handle: int) -> None:
    with relaxed_capture(driver):
        driver.cuGraphExecDestroy(handle)


def capture(launch_all: LaunchAll) -> CudaGraph | None:
    """Capture `launch_all(stream)` without running it; None where the driver refuses."""
    driver = load_driver()
    if driver is None:
        return None
    stream = c_void_p()
    with relaxed_capture(driver):
        # a stream of our own: torch shares its few streams between all callers
        if driver.cuStreamCreate(byref(stream), NON_BLOCKING):
            return None
        try:
            return _capture_on(stream, launch_all, driver)
        except RuntimeError:  # a launch that cannot be captured
            return None
        finally:
            driver.cuStreamDestroy_v2(stream)


def _capture_on(stream: c_void_p, launch_all: LaunchAll, driver: Any) -> CudaGraph | None:
    graph, executable = c_void_p(), c_void_p()
    if driver.cuStreamBeginCapture_v2(stream, RELAXED):
        return None
    try:
        try:
            launch_all(stream.value or 0)
        finally:
            refused = driver.cuStreamEndCapture(stream, byref(graph))
        if refused or not graph.value or driver.cuGraphInstantiateWithFlags(byref(executable), graph, 0):
            return None
        return CudaGraph(driver, executable.value or 0)
    finally:
        if graph.value:
            driver.cuGraphDestroy(graph)


class GraphCache:
    """The graphs of all cached launches. A key names the launches, the stream and every address.

    The least recently used graph goes first. A key is captured once: when more address sets than MAX_GRAPHS take turns,
    capturing each again would cost more than launching one by one.
    """

    def __init__(self) -> None:
        self.graphs: OrderedDict[Hashable, CudaGraph] = OrderedDict()
        self.calls: dict[Hashable, int] = {}
        self.failures = 0

    def run(self, key: Hashable, stream: int, launch_all: LaunchAll) -> None:
        """Replay the graph of this key, or launch one by one and capture once the key has repeated."""
        graph = self.graphs.get(key)
        if graph is not None and graph.replay(stream):
            with suppress(KeyError):  # dropped by another thread
                self.graphs.move_to_end(key)
            return
        launch_all(stream)
        if self.failures >= MAX_FAILURES or os.environ.get(REPLAY_VARIABLE) == "0":
            return
        if len(self.calls) >= MAX_COUNTED:
            self.calls.clear()
        self.calls[key] = calls = self.calls.get(key, 0) + 1
        if calls != CALLS_BEFORE_CAPTURE:
            return
        graph = capture(launch_all)
        if graph is None:
            self.failures += 1
            return
        self.graphs[key] = graph
        while len(self.graphs) > MAX_GRAPHS:
            self.graphs.popitem(last=False)


graph_cache = GraphCache()


def is_capturing() -> bool:
    """Whether the current stream is being captured."""
    capturing: bool = torch.cuda.is_current_stream_capturing()
    return capturing
