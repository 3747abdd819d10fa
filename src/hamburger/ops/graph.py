"""Launches recorded as a CUDA graph by the driver itself.

Torch's own graph keeps memory and random states for what is recorded, and starts two kernels more at every replay to
set the latter. Launches on memory that is taken care of elsewhere need none of it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

RELAXED = 2  # other threads, and torch's allocator, may go on meanwhile
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


class Graph:
    """What was recorded, ready to start. It may be dropped while it runs."""

    def __init__(self, cuda: Any, handle: int) -> None:
        self.launch, self.destroy, self.handle = cuda.cuGraphLaunch, cuda.cuGraphExecDestroy, handle

    def replay(self, stream: int) -> bool:
        """Start it on a stream of the current device; False where the driver refuses."""
        refused: int = self.launch(self.handle, stream)
        return not refused

    def __del__(self) -> None:
        self.destroy(self.handle)


def recorded(start: Callable[[int], None]) -> Graph | None:
    """The launches of `start(stream)`, which do not run; None where the driver refuses."""
    cuda = driver()
    stream, graph, ready = c_void_p(), c_void_p(), c_void_p()
    # a stream of our own: torch hands out the same few to everybody
    if cuda is None or cuda.cuStreamCreate(byref(stream), NON_BLOCKING):
        return None
    try:
        if cuda.cuStreamBeginCapture_v2(stream, RELAXED):
            return None
        try:
            start(stream.value or 0)
        finally:
            refused = cuda.cuStreamEndCapture(stream, byref(graph))
        if refused or not graph.value or cuda.cuGraphInstantiateWithFlags(byref(ready), graph, 0):
            return None
        return Graph(cuda, ready.value or 0)
    except RuntimeError:  # a launch that cannot be recorded
        return None
    finally:
        if graph.value:
            cuda.cuGraphDestroy(graph)
        cuda.cuStreamDestroy_v2(stream)
