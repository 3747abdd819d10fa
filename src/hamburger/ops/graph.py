"""Launches recorded as a CUDA graph by the driver itself.

Torch's own graph keeps memory and random states for what is recorded, and starts two kernels more at every replay to
set the latter. Launches on memory that is taken care of elsewhere need none of it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

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
def driver() -> Any:
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
def relaxed(cuda: Any) -> Iterator[None]:
    """What this thread does meanwhile is no concern of a recording in another thread, which it would break."""
    mode = c_int(RELAXED)
    cuda.cuThreadExchangeStreamCaptureMode(byref(mode))
    try:
        yield
    finally:
        cuda.cuThreadExchangeStreamCaptureMode(byref(mode))  # as it was


class Graph:
    """What was recorded, ready to start."""

    def __init__(self, cuda: Any, handle: int) -> None:
        self.cuda, self.launch, self.handle = cuda, cuda.cuGraphLaunch, handle

    def replay(self, stream: int) -> bool:
        """Start it on a stream of the current device; False where the driver refuses."""
        refused: int = self.launch(self.handle, stream)
        return not refused

    def __del__(self) -> None:
        with relaxed(self.cuda):
            self.cuda.cuGraphExecDestroy(self.handle)


def recorded(start: Callable[[int], None]) -> Graph | None:
    """The launches of `start(stream)`, which do not run; None where the driver refuses."""
    cuda = driver()
    if cuda is None:
        return None
    stream = c_void_p()
    with relaxed(cuda):
        # a stream of our own: torch hands out the same few to everybody
        if cuda.cuStreamCreate(byref(stream), NON_BLOCKING):
            return None
        try:
            return _recorded_on(stream, start, cuda)
        except RuntimeError:  # a launch that cannot be recorded
            return None
        finally:
            cuda.cuStreamDestroy_v2(stream)


def _recorded_on(stream: c_void_p, start: Callable[[int], None], cuda: Any) -> Graph | None:
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
        return Graph(cuda, ready.value or 0)
    finally:
        if graph.value:
            cuda.cuGraphDestroy(graph)
