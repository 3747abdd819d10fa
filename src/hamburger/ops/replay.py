"""The same launches at the same addresses once more, as a single one: a CUDA graph, recorded by itself.

In a loop torch's allocator hands out the same memory again and again, so the addresses of a tape's launches repeat.
Where they have done so a few times they are recorded; later calls start the recording. Nothing is copied, and none of
torch's memory is kept: where an address is another one, the launches are made one by one as before. HAM_REPLAY=0 turns
it off, for tapes that are made from then on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable

import torch

from hamburger.ops.graph import Graph, recorded
from hamburger.ops.start import hooked

TIMES = 3  # that addresses are seen before they are recorded: a recording costs as much as some hundred launches
MOST_RECORDED = 64  # recordings of all tapes: each takes memory of the driver's, which torch does not know of
MOST_SEEN = 256  # addresses of a tape that are counted
MOST_REFUSED = 3  # times in a tape's life that a driver may refuse
VARIABLE = "HAM_REPLAY"

Start = Callable[[int], None]  # all launches, on that stream


class Recordings:
    """Of one tape, by stream and addresses."""

    def __init__(self) -> None:
        self.found: dict[Hashable, Graph] = {}
        self.seen: dict[Hashable, int] = {}
        self.refused = MOST_REFUSED if os.environ.get(VARIABLE) == "0" else 0

    def play(self, key: Hashable, stream: int) -> bool:
        """Start the recording, where there is one and nobody else is recording or looking on."""
        graph = self.found.get(key)
        return graph is not None and not capturing() and not hooked() and graph.replay(stream)

    def note(self, key: Hashable, start: Start) -> None:
        """These launches have just been made; record them if they come often."""
        if self.refused >= MOST_REFUSED or capturing() or hooked():
            return
        if len(self.seen) >= MOST_SEEN:
            self.seen.clear()
        self.seen[key] = times = self.seen.get(key, 0) + 1
        if times < TIMES:
            return
        self.seen.pop(key, None)  # another thread may have cleared all
        graph = recorded(start)
        if graph is None:  # a driver that cannot, now or ever: as before
            self.refused += 1
            return
        self.found[key] = graph
        _all.append((self, key))
        while len(_all) > MOST_RECORDED:
            other, oldest = _all.popleft()
            other.found.pop(oldest, None)


_all: deque[tuple[Recordings, Hashable]] = deque()


def capturing() -> bool:
    """Whether the current stream is being recorded by somebody."""
    recording: bool = torch._C._cuda_isCurrentStreamCapturing()
    return recording
