"""Copies from global to shared memory that a thread starts and waits for later (cp.async)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .decode import Decoder, Step, number, rule
from .parse import Instruction

if TYPE_CHECKING:
    from .machine import Program

WORD = np.dtype(np.uint32)


class Copy(NamedTuple):
    """A pending copy: what it will write where, and for which warps."""

    at: np.ndarray
    warps: np.ndarray
    values: np.ndarray  # words threads


class Copies:
    """Of one program, in groups as they were committed."""

    def __init__(self) -> None:
        self.open: list[Copy] = []
        self.committed: list[list[Copy]] = []

    def begin(self, program: Program, copy: Copy) -> None:
        program.shared.expect(program, copy.at, copy.warps, 4 * len(copy.values))
        self.open.append(copy)

    def commit(self) -> None:
        self.committed.append(self.open)
        self.open = []

    def wait(self, program: Program, left: int) -> None:
        """Until at most `left` groups are under way. A thread sees its own copies, those of others after bar.sync."""
        count = max(0, len(self.committed) - left)
        done, self.committed = self.committed[:count], self.committed[count:]
        for copy in (copy for group in done for copy in group):
            program.shared.arrive(program, copy.at, copy.warps, copy.values)


@rule(r"cp\.async\.c[ag]\.shared\.global")
def begin(decoder: Decoder, ins: Instruction) -> Step:
    to, where, bytes_, *size = ins.operands
    words = number(ins, bytes_) // 4
    at, source, live = decoder.address(ins, to), decoder.address(ins, where), decoder.live(ins)
    taken = decoder.source(ins, size[0], "u32") if size else None  # bytes to read; zeros follow

    def step(program: Program) -> None:
        who = np.zeros(decoder.threads, bool)
        who[live(program)] = True
        reads = who.copy()
        if taken is not None:
            if not np.isin(taken(program)[who], (0, 4 * words)).all():
                raise ins.unknown("is emulated for all of it or nothing")
            reads &= taken(program) != 0
        values = np.zeros((words, decoder.threads), WORD)
        values[:, reads] = program.memory.load(program, source(program)[reads], program.warps[reads], WORD, words)
        program.copies.begin(program, Copy(at(program)[who], program.warps[who], values[:, who]))

    return step


@rule(r"cp\.async\.commit_group")
def commit(decoder: Decoder, ins: Instruction) -> Step:
    decoder.unguarded(ins)
    return lambda program: program.copies.commit()


@rule(r"cp\.async\.wait_group")
def wait(decoder: Decoder, ins: Instruction) -> Step:
    decoder.unguarded(ins)
    (left,) = (number(ins, one) for one in ins.operands)
    return lambda program: program.copies.wait(program, left)
