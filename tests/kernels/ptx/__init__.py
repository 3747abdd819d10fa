"""Run the PTX of a Gluon kernel on a CPU, and detect its races.

All threads of a program go in lockstep, as vectors of numpy; programs take turns, and give way where they meet others:
before they read or add to a counter. `parse` reads the text, `decode` makes a step of each instruction by the rules of
`arithmetic`, `movement`, `copies` and `wgmma`, `machine` takes the steps, `memory` and `races` watch over them.

Reported, with the instruction that did it (Race, or Fault):
- two warps touch the same shared or global memory, one of them writes, with no bar.sync between;
- two programs do so in global memory, with no release and acquire between;
- a program releases before its threads have met;
- wgmma reads shared memory that was not written, or not fenced (fence.proxy.async, then bar.sync) since;
- shared memory is overwritten that a wgmma in flight reads, or one that only its own warps have waited for;
- a register of a wgmma in flight is touched;
- shared memory is touched that a cp.async writes, before its threads have waited for it, or by others before bar.sync;
- threads of one instruction write different values to one place;
- an access is misaligned, or outside of every array;
- threads of a program part ways at a branch: not an error on a GPU, but not emulated;
- no program of those left makes progress (Hang).
What is not known raises Unknown when the text is read, before anything runs.

Shared memory and registers are poisoned at the start: they read as NaN.

Not emulated: time, caches and the weak order of loads and stores; threads of one warp that are not in lockstep (a
missing __syncwarp); wgmma.fence, which the compiler places; a loop that polls nothing and never ends. Divisions, powers
of two and the sums within one wgmma are rounded once, where a GPU may be off by a few units in the last place.
"""

from .machine import launch
from .memory import Memory
from .parse import Unknown
from .races import Fault, Hang, Race

__all__ = ["Fault", "Hang", "Memory", "Race", "Unknown", "launch"]
