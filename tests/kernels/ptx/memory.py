"""Shared and global memory: bytes, and a record of accesses that detects races."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .races import Fault, Programs, Race, Warps

if TYPE_CHECKING:
    from .machine import Program

NEVER = np.iinfo(np.int32).max


class Space:
    """What loads and stores have in common. They get the addresses, warps and values of the threads that take part.

    `reads` and `writes` are told which halves of words are about to be touched.
    """

    raw: np.ndarray  # bytes

    def load(self, program: Program, at: np.ndarray, warps: np.ndarray, dtype: np.dtype, count: int) -> np.ndarray:
        """`count` numbers from each address.   ->   count threads"""
        if not at.size:
            return np.empty((count, 0), dtype)
        self.reads(program, self.halves(at, dtype.itemsize * count), warps[:, None])
        return self.raw.view(dtype)[at // dtype.itemsize + np.arange(count)[:, None]]

    def store(self, program: Program, at: np.ndarray, warps: np.ndarray, values: np.ndarray) -> None:
        """values: count threads"""
        if not at.size:
            return
        size = values.itemsize
        self.writes(program, self.halves(at, size * len(values)), warps[:, None])
        self.put_down(at // size + np.arange(len(values))[:, None], values)

    def put_down(self, places: np.ndarray, values: np.ndarray) -> None:
        """places: in numbers of the values' kind, not in bytes"""
        view = self.raw.view(values.dtype)
        view[places] = values
        if (view[places] != values).any():
            raise Race("two threads write different values to one place")

    def halves(self, at: np.ndarray, size: int) -> np.ndarray:
        """The halves of words in `size` bytes behind each address.   ->   threads size/2"""
        if at.min() < 0 or at.max() + size > self.raw.size:
            raise Fault("outside of memory")
        if (at % size).any():
            raise Fault(f"an address that is no multiple of {size}")
        return at[:, None] // 2 + np.arange(size // 2)

    def reads(self, program: Program, halves: np.ndarray, warps: np.ndarray) -> None:
        raise NotImplementedError

    def writes(self, program: Program, halves: np.ndarray, warps: np.ndarray) -> None:
        raise NotImplementedError


class Shared(Space):
    """Of one program. The matrix units see it through a proxy of their own, which needs fences."""

    def __init__(self, size: int, warps: int) -> None:
        self.raw = np.full(-(-size // 8) * 8, 255, np.uint8)  # NaN in bfloat16 and float32
        self.order = Warps(self.raw.size, warps)
        self.in_flight = np.zeros(self.raw.size // 2, np.int16)  # how many wgmma read it just now
        self.expected = np.zeros(self.raw.size // 2, np.int16)  # how many cp.async are about to write it
        self.fences, self.fenced = 0, 0  # passed by each thread, and passed by all
        self.written = np.full(self.raw.size // 2, NEVER, np.int32)  # how many fences came before

    def reads(self, program: Program, halves: np.ndarray, warps: np.ndarray) -> None:
        self.nothing_expected(halves)
        self.order.reads(halves, warps, program.stretch)

    def writes(self, program: Program, halves: np.ndarray, warps: np.ndarray) -> None:
        self.nothing_expected(halves)
        if self.in_flight[halves].any():
            raise Race("written while a wgmma in flight reads it")
        self.order.writes(halves, warps, program.stretch)
        self.written[halves] = self.fences

    def fence(self) -> None:
        self.fences += 1

    def threads_met(self) -> None:
        self.fenced = self.fences

    def take_off(self, halves: np.ndarray) -> None:
        """A wgmma begins to read; halves: each once"""
        self.nothing_expected(halves)
        if (self.written[halves] >= self.fenced).any():
            raise Race("wgmma reads what was not written, fenced and then met at by all threads")
        self.in_flight[halves] += 1

    def land(self, program: Program, halves: np.ndarray) -> None:
        """It has ended, but only the warps that waited for it know: to the others it reads until the next bar.sync."""
        self.in_flight[halves] -= 1
        self.order.read[halves] = self.order.stamps(program.stretch, self.order.several)

    def expect(self, program: Program, at: np.ndarray, warps: np.ndarray, size: int) -> None:
        """A cp.async begins: it may write at any time until it is waited for."""
        if not at.size:
            return
        halves = self.halves(at, size)
        self.writes(program, halves, warps[:, None])
        self.expected[halves] += 1

    def arrive(self, program: Program, at: np.ndarray, warps: np.ndarray, values: np.ndarray) -> None:
        """It has ended, as its own threads know, and others after the next bar.sync.   values: words threads"""
        if not at.size:
            return
        self.expected[self.halves(at, values.itemsize * len(values))] -= 1
        self.store(program, at, warps, values)

    def nothing_expected(self, halves: np.ndarray) -> None:
        if self.expected[halves].any():
            raise Race("touched while a pending cp.async writes it")


class Memory(Space):
    """Global memory: arrays with gaps between them that no access may touch."""

    GAP = 4096

    def __init__(self) -> None:
        self.arrays: list[tuple[int, np.ndarray]] = []
        self.top = self.GAP
        self.changes = 0

    def put(self, array: np.ndarray, aligned: int = 16) -> int:
        """An array of bytes, for a launch to work on. `aligned`: its address, but for multiples of 256."""
        at = -(-self.top // 256) * 256 + aligned % 256
        self.top = at + array.size + self.GAP
        self.arrays.append((at, array))
        return at

    def begin(self, programs: int, warps: int) -> None:
        size = -(-self.top // 8) * 8
        self.raw, self.legal = np.zeros(size, np.uint8), np.zeros(size // 2, bool)
        for at, array in self.arrays:
            self.raw[at : at + array.size] = array
            self.legal[at // 2 : (at + array.size) // 2] = True
        self.warps, self.programs = Warps(size, warps), Programs(size, programs)

    def take_back(self) -> None:
        for at, array in self.arrays:
            array[:] = self.raw[at : at + array.size]

    def halves(self, at: np.ndarray, size: int) -> np.ndarray:
        indices = super().halves(at, size)
        if not self.legal[indices].all():
            raise Fault("outside of every array")
        return indices

    def reads(self, program: Program, halves: np.ndarray, warps: np.ndarray) -> None:
        program.met = False
        self.warps.reads(halves, warps, program.stretch)
        self.programs.reads(program.index, halves)

    def writes(self, program: Program, halves: np.ndarray, warps: np.ndarray) -> None:
        program.met = False
        self.changes += 1
        self.warps.writes(halves, warps, program.stretch)
        self.programs.writes(program.index, halves)

    def add(self, program: Program, at: np.ndarray, amounts: np.ndarray, release: bool) -> np.ndarray:
        """Each thread adds, one after another.   at, amounts: uint32   ->   the values before"""
        if not at.size:
            return amounts
        self.halves(at, 4)  # or it is a fault
        if release and not program.met:
            raise Race("a release, but other threads of the program have touched global memory since the last bar.sync")
        view, before = self.raw.view(np.uint32), np.empty_like(amounts)
        for thread, place in enumerate(at // 4):
            before[thread] = view[place]
            view[place : place + 1] += amounts[thread]
            if release:
                self.programs.release(program.index, int(place))
        self.changes += 1
        return before

    def acquire(self, program: Program, at: np.ndarray, *, when_met: bool = False) -> np.ndarray:
        """Counters: what was released at them is known from now on, or when the threads have met.   ->   uint32"""
        self.halves(at, 4)  # or it is a fault
        for place in np.unique(at // 4):
            knowledge = self.programs.knowledge_at(int(place))
            if when_met:
                program.learned.append(knowledge)
            else:
                self.programs.learn(program.index, knowledge)
        return self.raw.view(np.uint32)[at // 4]
