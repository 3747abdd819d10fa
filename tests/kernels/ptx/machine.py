"""Programs that take their steps, and a launch that gives them turns."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from . import arithmetic, copies, movement, wgmma  # noqa: F401 - they register their rules
from .decode import Decoded, Kernel, decode
from .memory import Memory, Shared
from .parse import Code, Unknown
from .races import Fault, Hang, Race

PATIENCE = 50  # rounds in which no program changes memory

Order = Callable[[list[int]], Sequence[int]]


class Program:
    """One program of a grid: its registers, its shared memory, and how far it is ordered with others."""

    def __init__(
        self, index: int, place: tuple[int, ...], kernel: Kernel, parameters: dict[str, int],
        memory: Memory, shared: int, stretches: Iterator[int],
    ) -> None:  # fmt: skip
        self.index, self.parameters, self.memory = index, parameters, memory
        threads = np.arange(kernel.code.threads, dtype=np.uint32)
        self.warps = threads.astype(np.int64) // 32
        self.shared = Shared(shared, kernel.code.threads // 32)
        self.spaces = {"global": memory, "shared": self.shared}
        self.registers = [*kernel.registers]
        self.specials = {"%tid.x": threads, "global_smem": np.zeros_like(threads)}
        self.specials |= {f"%ctaid.{axis}": np.full_like(threads, at) for axis, at in zip("xyz", place, strict=True)}
        self.flights = wgmma.Flights()
        self.copies = copies.Copies()
        self.stretches = stretches
        self.learned: list[tuple[int, np.ndarray] | None] = []  # what one warp has learned of other programs
        self.threads_meet()

    def threads_meet(self) -> None:
        self.stretch = next(self.stretches)
        self.met = True  # no access to global memory since
        for knowledge in self.learned:
            self.memory.programs.learn(self.index, knowledge)
        self.learned.clear()
        self.shared.threads_met()

    def run(self, steps: list[Decoded]) -> Iterator[Decoded]:
        """Gives way with the step that it is about to take."""
        place = 0
        while place < len(steps):
            now = steps[place]
            if now.gives_way:
                yield now
            try:
                if not self.flights.registers.isdisjoint(now.registers):
                    raise Race("a register of a wgmma in flight")
                goes = now.step(self)
            except Fault as fault:
                ins = now.instruction
                raise type(fault)(f"{fault}: program {self.index}, line {ins.line}: {ins.text[:160]}") from fault
            place = place + 1 if goes is None else goes


def launch(
    text: str, grid: tuple[int, ...], arguments: Sequence[int | float], memory: Memory, shared: int, order: Order = list
) -> None:
    """Run a kernel on the arrays in memory.

    arguments: addresses and numbers in the order of the kernel's own; what Triton adds behind them is zero.
    shared: bytes. order: which of the programs that still run have a turn in the next round, and in which order.
    """
    kernel = decode(text)
    parameters = bits_of(kernel.code, arguments)
    places = [(x, y, z) for z, y, x in itertools.product(*(range(size) for size in reversed((*grid, 1, 1)[:3])))]
    memory.begin(len(places), kernel.code.threads // 32)
    stretches = itertools.count()
    programs = [Program(i, at, kernel, parameters, memory, shared, stretches) for i, at in enumerate(places)]
    with np.errstate(all="ignore"):
        take_turns([program.run(kernel.steps) for program in programs], memory, order)
    memory.take_back()


def bits_of(code: Code, arguments: Sequence[int | float]) -> dict[str, int]:
    """Parameter -> its bits."""
    if len(arguments) > len(code.parameters):
        raise Unknown(f"{len(arguments)} arguments for {len(code.parameters)} parameters")
    bits = {}
    for (name, kind), value in itertools.zip_longest(code.parameters.items(), arguments, fillvalue=0):
        if kind not in ("u64", "u32", "f32") or (kind == "f32") != isinstance(value, float):
            raise Unknown(f"{value!r} for the parameter {name} of type {kind}")
        bits[name] = struct.unpack("<I", struct.pack("<f", value))[0] if kind == "f32" else value
    return bits


def take_turns(running: list[Iterator[Decoded]], memory: Memory, order: Order) -> None:
    left, waits_at, patience = dict(enumerate(running)), {}, PATIENCE
    while left:
        before = memory.changes, len(left)
        for index in order([*left]):
            waits_at[index] = next(left[index], None)
            if waits_at[index] is None:
                del left[index], waits_at[index]
        patience = patience - 1 if (memory.changes, len(left)) == before else PATIENCE
        if patience == 0:
            ins = next(iter(waits_at.values())).instruction
            raise Hang(f"programs {[*left]} wait for ever, one of them at line {ins.line}: {ins.text[:160]}")
