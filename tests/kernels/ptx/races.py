"""The order that barriers establish between the warps of a program, and between programs.

Both keep a record for every two bytes, for neighbours in one word may belong to different threads.
"""

from __future__ import annotations

import numpy as np


class Fault(Exception):
    """What a kernel must not do."""


class Hang(Fault):
    """Programs wait for an event that never happens."""


class Race(Fault):
    """Two unordered accesses to the same memory, at least one of them a write."""


class Warps:
    """The warps of a program, ordered by bar.sync alone. Threads of one warp are in order by themselves.

    A stamp is a stretch (of one program, from one bar.sync to the next: numbers are never used twice) and a warp.
    """

    def __init__(self, size: int, warps: int) -> None:
        """size: bytes"""
        self.several = warps  # stands for more than one warp
        self.written, self.read = np.full(size // 2, -1), np.full(size // 2, -1)

    def reads(self, halves: np.ndarray, warps: np.ndarray, stretch: int) -> None:
        """halves, warps: of the same shape, or broadcast to it"""
        stamps = self.stamps(stretch, warps)
        if self.others(self.written[halves], stamps, stretch).any():
            raise Race("read after another warp wrote it, and no bar.sync between")
        stamps = np.where(self.others(self.read[halves], stamps, stretch), self.stamps(stretch, self.several), stamps)
        self.read[halves] = stamps
        self.read[halves[self.read[halves] != stamps]] = self.stamps(stretch, self.several)  # in one instruction

    def writes(self, halves: np.ndarray, warps: np.ndarray, stretch: int) -> None:
        stamps = self.stamps(stretch, warps)
        if self.others(self.read[halves], stamps, stretch).any():
            raise Race("written after another warp read it, and no bar.sync between")
        if self.others(self.written[halves], stamps, stretch).any():
            raise Race("written by two warps, and no bar.sync between")
        self.written[halves] = stamps

    def stamps(self, stretch: int, warps: np.ndarray | int) -> np.ndarray | int:
        return stretch * (self.several + 1) + warps

    def others(self, stamps: np.ndarray, mine: np.ndarray, stretch: int) -> np.ndarray:
        """Which of the stamps are of this stretch, but of another warp."""
        first = self.stamps(stretch, 0)
        return (stamps >= first) & (stamps <= first + self.several) & (stamps != mine)


class Programs:
    """The programs of a launch, ordered by counters: who reads a counter (acquire) comes after all who added to it
    (release), and after what those knew of.

    What a program touches bears its level, which a release raises. All that meet at a barrier leave it with the same
    level, so that one for all readers of a place is enough. It would be too strict for programs that meet in pairs.
    """

    def __init__(self, size: int, programs: int) -> None:
        """size: bytes"""
        self.level = np.zeros(programs, np.int32)
        self.known = np.full((programs, programs), -1, np.int32)  # [p, q]: up to which level p knows of q
        self.counters: dict[int, tuple[int, np.ndarray]] = {}  # address -> level, known
        self.writer, self.wrote = np.full(size // 2, -1, np.int16), np.zeros(size // 2, np.int32)
        # one bit for each program that has read
        self.readers, self.read = np.zeros((size // 2, -(-programs // 8)), np.uint8), np.zeros(size // 2, np.int32)

    def reads(self, program: int, halves: np.ndarray) -> None:
        self.after_writers(program, halves, "read")
        self.readers[halves, program // 8] |= np.uint8(1 << program % 8)
        self.read[halves] = np.maximum(self.read[halves], self.level[program])

    def writes(self, program: int, halves: np.ndarray) -> None:
        self.after_writers(program, halves, "written")
        self.after_readers(program, halves)
        self.writer[halves], self.wrote[halves] = program, self.level[program]

    def after_writers(self, program: int, halves: np.ndarray, what: str) -> None:
        writer = self.writer[halves]
        bad = (writer >= 0) & (writer != program) & (self.known[program, writer] < self.wrote[halves])
        if bad.any():
            raise Race(f"{what} with no barrier after program {writer[bad][0]} wrote it")

    def after_readers(self, program: int, halves: np.ndarray) -> None:
        readers, levels = self.readers[halves], self.read[halves]
        if not readers.any():
            return
        for level in np.unique(levels):
            strangers = self.known[program] < level
            strangers[program] = False
            if (readers[levels == level] & np.packbits(strangers, bitorder="little")).any():
                raise Race("written with no barrier after another program read it")

    def release(self, program: int, counter: int) -> None:
        mine = self.known[program].copy()
        mine[program] = self.level[program]
        level, known = self.counters.get(counter, (0, mine))
        self.counters[counter] = max(level, int(self.level[program])), np.maximum(known, mine)
        self.level[program] += 1

    def knowledge_at(self, counter: int) -> tuple[int, np.ndarray] | None:
        """The level and the knowledge that a read of the counter gives a program, or None."""
        return self.counters.get(counter)

    def learn(self, program: int, knowledge: tuple[int, np.ndarray] | None) -> None:
        if knowledge is not None:
            level, known = knowledge
            np.maximum(self.known[program], known, out=self.known[program])
            self.level[program] = max(self.level[program], level + 1)
