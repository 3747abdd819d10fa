"""CUDA graphs captured through the driver, and their replay where the addresses of cached launches repeat.

Torch's own graph keeps memory and random states for what is recorded, and starts two kernels more at every replay to
set the latter. Launches on memory that is taken care of elsewhere need none of it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

import torch

from hamburger.kernels.launcher import has_launch_hook

RELAXED = 2  # whoever else records, or takes memory, may go on meanwhile
NON_BLOCKING = 1  # a stream that does not wait for the default one, which cannot be recorded
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


@functools.cache
def load_driver() -> Any:
    """Those functions of CUDA's driver; None where it has not got them."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        for name, arguments in ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
    except (OSError, AttributeError):
        return None
    return library


@contextmanager
def relaxed_capture(cuda: Any) -> Iterator[None]:
    """What this thread does meanwhile is no concern of a recording in another thread, which it would break."""
    mode = c_int(RELAXED)
    cuda.cuThreadExchangeStreamCaptureMode(byref(mode))
    try:
        yield
    finally:
        cuda.cuThreadExchangeStreamCaptureMode(byref(mode))  # as it was


class CudaGraph:
    """What was recorded, ready to start."""

    def __init__(self, cuda: Any, handle: int) -> None:
        self.cuda, self.launch, self.handle = cuda, cuda.cuGraphLaunch, handle

    def replay(self, stream: int) -> bool:
        """Start it on a stream of the current device; False where the driver refuses."""
        refused: int = self.launch(self.handle, stream)
        return not refused

    def __del__(self) -> None:
        with relaxed_capture(self.cuda):
            self.cuda.cuGraphExecDestroy(self.handle)


def capture(start: Callable[[int], None]) -> CudaGraph | None:
    """The launches of `start(stream)`, which do not run; None where the driver refuses."""
    cuda = load_driver()
    if cuda is None:
        return None
    stream = c_void_p()
    with relaxed_capture(cuda):
        # a stream of our own: torch hands out the same few to everybody
        if cuda.cuStreamCreate(byref(stream), NON_BLOCKING):
            return None
        try:
            return _capture_on(stream, start, cuda)
        except RuntimeError:  # a launch that cannot be recorded
            return None
        finally:
            cuda.cuStreamDestroy_v2(stream)


def _capture_on(stream: c_void_p, start: Callable[[int], None], cuda: Any) -> CudaGraph | None:
    graph, ready = c_void_p(), c_void_p()
    if cuda.cuStreamBeginCapture_v2(stream, RELAXED):
        return None
    try:
        try:
            start(stream.value or 0)
        finally:
            refused = cuda.cuStreamEndCapture(stream, byref(graph))
        if refused or not graph.value or cuda.cuGraphInstantiateWithFlags(byref(ready), graph, 0):
            return None
        return CudaGraph(cuda, ready.value or 0)
    finally:
        if graph.value:
            cuda.cuGraphDestroy(graph)


# -- replay ------------------------------------------------------------------------------------------------------------
# In a loop torch's allocator returns the same memory again and again, so the addresses of cached launches repeat. After
# a few repetitions the launches are captured, and later calls replay the graph. Nothing is copied and no torch memory
# is kept: with other addresses the launches are made one by one. HAM_REPLAY=0 turns replay off for new caches.


CALLS_BEFORE_CAPTURE = 3  # with the same addresses: a capture costs as much as some hundred launches
MAX_GRAPHS = 64  # in all caches: each takes driver memory that torch does not count
MAX_COUNTED = 256  # keys of one cache that are counted
MAX_FAILURES = 3  # captures that may fail before a cache stops trying
REPLAY_VARIABLE = "HAM_REPLAY"

LaunchAll = Callable[[int], None]  # all launches, on that stream


class GraphCache:
    """The graphs of one set of cached launches, by stream and addresses."""

    def __init__(self) -> None:
        self.found: dict[Hashable, CudaGraph] = {}
        self.seen: dict[Hashable, int] = {}
        self.refused = MAX_FAILURES if os.environ.get(REPLAY_VARIABLE) == "0" else 0

    def play(self, key: Hashable, stream: int) -> bool:
        """Replay the graph, if there is one and no other capture or launch hook is active."""
        graph = self.found.get(key)
        return graph is not None and not is_capturing() and not has_launch_hook() and graph.replay(stream)

    def note(self, key: Hashable, start: LaunchAll) -> None:
        """Count these launches; capture them when their addresses repeat."""
        if self.refused >= MAX_FAILURES or is_capturing() or has_launch_hook():
            return
        if len(self.seen) >= MAX_COUNTED:
            self.seen.clear()
        self.seen[key] = times = self.seen.get(key, 0) + 1
        if times < CALLS_BEFORE_CAPTURE:
            return
        self.seen.pop(key, None)  # another thread may have cleared all
        graph = capture(start)
        if graph is None:  # the driver cannot, now or ever: launch one by one as before
            self.refused += 1
            return
        self.found[key] = graph
        _all_graphs.append((self, key))
        while len(_all_graphs) > MAX_GRAPHS:
            other, oldest = _all_graphs.popleft()
            other.found.pop(oldest, None)


_all_graphs: deque[tuple[GraphCache, Hashable]] = deque()


def is_capturing() -> bool:
    """Whether the current stream is being captured."""
    recording: bool = torch._C._cuda_isCurrentStreamCapturing()
    return recording
