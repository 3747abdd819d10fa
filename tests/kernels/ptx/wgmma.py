"""The matrix units of Hopper: D += A B in float32, A and B in bfloat16 from shared memory, behind descriptors.

A may also come from registers.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .arithmetic import from_bfloat16
from .decode import Decoder, Step, number, parts, rule
from .parse import Instruction, Register, Vector
from .races import Fault

if TYPE_CHECKING:
    from .machine import Program

GROUP = 128  # threads that go together
M, K = 64, 16


class Flight(NamedTuple):
    """A pending wgmma."""

    registers: frozenset[int]
    halves: list[np.ndarray]  # what it reads, an array for each group of threads


class Flights:
    """Of one program, in groups as they were committed."""

    def __init__(self) -> None:
        self.open: list[Flight] = []
        self.committed: list[list[Flight]] = []
        self.registers: frozenset[int] = frozenset()  # not to be touched

    def begin(self, flight: Flight) -> None:
        self.open.append(flight)
        self.registers |= flight.registers

    def commit(self) -> None:
        self.committed.append(self.open)
        self.open = []

    def wait(self, program: Program, left: int) -> None:
        """Until at most `left` groups are in flight."""
        count = max(0, len(self.committed) - left)
        done, self.committed = self.committed[:count], self.committed[count:]
        for flight in (flight for group in done for flight in group):
            for halves in flight.halves:
                program.shared.land(program, halves)
        still = [*self.open, *(flight for group in self.committed for flight in group)]
        self.registers = frozenset().union(*(flight.registers for flight in still))


def places(descriptor: int, rows: int, transposed: int) -> np.ndarray:
    """Return the positions of the rows x 16 half-precision values of a descriptor, in half words."""
    start, lead, stride = ((descriptor >> bit & 0x3FFF) << 4 for bit in (0, 16, 32))
    if descriptor >> 62 != 1 or descriptor >> 49 & 7:
        raise Fault(f"the descriptor {descriptor:#x}: only a swizzle of 128 bytes is emulated")
    i, k = np.arange(rows)[:, None], np.arange(K)[None, :]
    if transposed:  # lines of 64 rows, one k after another; `stride` to the next eight k, `lead` to the next 64 rows
        at = start + i % 64 * 2 + i // 64 * lead + k % 8 * 128 + k // 8 * stride
    else:  # lines of 64 k, one row after another; `stride` to the next eight rows
        at = start + k * 2 + i % 8 * 128 + i // 8 * stride
    return (at ^ (at >> 7 & 7) << 4) // 2


class Operands(NamedTuple):
    """Return the positions of A and B, and all half words that are read, each once."""

    a: np.ndarray
    b: np.ndarray
    halves: np.ndarray


@functools.lru_cache(maxsize=4096)
def operands(a: int, b: int, n: int, turned_a: int, turned_b: int) -> Operands:
    at_a, at_b = places(a, M, turned_a), places(b, n, turned_b)
    return Operands(at_a, at_b, np.unique(np.concatenate([at_a.ravel(), at_b.ravel()])))


@functools.cache
def fragment(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the result that the registers of the threads hold.   ->   n/2 128, twice"""
    register, thread = np.arange(n // 2)[:, None], np.arange(GROUP)[None, :]
    rows = thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8
    return rows, register // 4 * 8 + thread % 4 * 2 + register % 2


@rule(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.bf16\.bf16")
def multiply(decoder: Decoder, ins: Instruction, columns: str) -> Step:
    decoder.unguarded(ins)
    n = int(columns)
    sums, left, right, adds, *rest = ins.operands
    sign_a, sign_b, *turned = (number(ins, one) for one in rest)
    registers = [one.index for one in parts(sums) if isinstance(one, Register)]
    held = [one.index for one in parts(left) if isinstance(one, Register)] if isinstance(left, Vector) else []
    if (sign_a, sign_b) != (1, 1) or len(registers) != n // 2 or len(held) not in (0, 4) or decoder.threads % GROUP:
        raise ins.unknown("is not emulated with these operands")
    if held:
        return multiply_held(decoder, ins, n, registers, held, *turned)
    turned_a, turned_b = turned
    a, b = decoder.source(ins, left, "u64"), decoder.source(ins, right, "u64")
    use, used = decoder.source(ins, adds, "pred"), frozenset(registers)
    warp_groups = [slice(first, first + GROUP) for first in range(0, decoder.threads, GROUP)]

    def step(program: Program) -> None:
        products, flight = [], Flight(used, [])
        for group in warp_groups:
            at = operands(same(a(program)[group]), same(b(program)[group]), n, turned_a, turned_b)
            program.shared.take_off(at.halves)
            flight.halves.append(at.halves)
            products.append(product(program, at)[fragment(n)])
        accumulate(program, registers, np.concatenate(products, axis=1), use(program))
        program.flights.begin(flight)

    return step


def multiply_held(
    decoder: Decoder, ins: Instruction, n: int, registers: list[int], held: list[int], turned_b: int
) -> Step:
    """As `multiply`, with A in registers: two neighbours of a row in each, in the layout of a result of 16 columns."""
    b, use = decoder.source(ins, ins.operands[2], "u64"), decoder.source(ins, ins.operands[3], "pred")
    rows, columns = fragment(K)
    used, low, high = frozenset([*registers, *held]), slice(0, None, 2), slice(1, None, 2)

    def step(program: Program) -> None:
        products, flight = [], Flight(used, [])
        words = np.stack([program.registers[register] for register in held])
        for first in range(0, decoder.threads, GROUP):
            group = slice(first, first + GROUP)
            at = places(same(b(program)[group]), n, turned_b)
            read = np.unique(at)
            program.shared.take_off(read)
            flight.halves.append(read)
            a = np.empty((M, K))
            a[rows[low], columns[low]] = from_bfloat16(words[:, group].astype(np.uint16))
            a[rows[high], columns[high]] = from_bfloat16((words[:, group] >> 16).astype(np.uint16))
            halves = program.shared.raw.view(np.uint16)
            products.append((a @ from_bfloat16(halves[at]).astype(np.float64).T)[fragment(n)])
        accumulate(program, registers, np.concatenate(products, axis=1), use(program))
        program.flights.begin(flight)

    return step


def same(values: np.ndarray) -> int:
    if (values != values[0]).any():
        raise Fault("threads of a warp group that give wgmma different descriptors")
    return int(values[0])


def product(program: Program, at: Operands) -> np.ndarray:
    """-> M n"""
    halves = program.shared.raw.view(np.uint16)
    return from_bfloat16(halves[at.a]).astype(np.float64) @ from_bfloat16(halves[at.b]).astype(np.float64).T


def accumulate(program: Program, registers: list[int], sums: np.ndarray, use: np.ndarray) -> None:
    """sums: registers threads   use: whether to add to what is there, which may be poison"""
    if use.any():
        before = np.stack([program.registers[register] for register in registers]).view(np.float32)
        sums = sums + np.where(use, before, 0)
    for register, values in zip(registers, sums.astype(np.float32).view(np.uint32), strict=True):
        program.registers[register] = values


@rule(r"wgmma\.fence\.sync\.aligned")
def fence(decoder: Decoder, ins: Instruction) -> Step:
    """Orders registers before a wgmma. The compiler places it; lockstep needs none."""
    return lambda program: None


@rule(r"wgmma\.commit_group\.sync\.aligned")
def commit(decoder: Decoder, ins: Instruction) -> Step:
    decoder.unguarded(ins)
    return lambda program: program.flights.commit()


@rule(r"wgmma\.wait_group\.sync\.aligned")
def wait(decoder: Decoder, ins: Instruction) -> Step:
    decoder.unguarded(ins)
    (left,) = (number(ins, one) for one in ins.operands)
    return lambda program: program.flights.wait(program, left)
