"""From an instruction to a step: a function of a program, that returns where to go on unless it is the next place.

Values are vectors with a number for each thread. They are never changed in place, so that registers may share them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .parse import Address, Code, Instruction, Number, Operand, Register, Symbol, Vector, parse

if TYPE_CHECKING:
    from .machine import Program

Step = Callable[["Program"], int | None]
Source = Callable[["Program"], np.ndarray]
Target = Callable[["Program", np.ndarray], None]

WHOLE = {16: np.dtype(np.uint16), 32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
SIGNED = {16: np.dtype(np.int16), 32: np.dtype(np.int32), 64: np.dtype(np.int64)}
DTYPES = {f"{letter}{bits}": WHOLE[bits] for letter in "bu" for bits in WHOLE}
DTYPES |= {f"s{bits}": SIGNED[bits] for bits in SIGNED}
DTYPES |= {"f32": np.dtype(np.float32), "bf16": WHOLE[16], "pred": np.dtype(bool)}
POISON = {"pred": False, "b16": 0x7FFF, "b32": 0x7FFFFFFF, "b64": 0x7FFFFFFF_7FFFFFFF}
GIVES_WAY = re.compile(r"ld\.acquire\..*|atom\..*|red\..*")

rules: list[tuple[re.Pattern[str], Callable[..., Step]]] = []


def rule(pattern: str) -> Callable[[Callable[..., Step]], Callable[..., Step]]:
    """For the opcodes that match as a whole: (decoder, instruction, *groups of the pattern) -> step."""

    def keep(build: Callable[..., Step]) -> Callable[..., Step]:
        rules.append((re.compile(pattern), build))
        return build

    return keep


@functools.cache
def rule_of(opcode: str) -> tuple[Callable[..., Step], tuple[str | None, ...]] | None:
    for pattern, build in rules:
        if match := pattern.fullmatch(opcode):
            return build, match.groups()
    return None


class Decoded(NamedTuple):
    step: Step
    gives_way: bool  # others should have their turn before it
    registers: frozenset[int]  # not those of a wgmma, which may be given on from one to the next
    instruction: Instruction


class Kernel(NamedTuple):
    code: Code
    steps: list[Decoded]
    registers: list[np.ndarray]  # as they are at the start, poisoned


@functools.lru_cache(maxsize=2)  # some 10^5 objects each, which slow down the collection of garbage
def decode(text: str) -> Kernel:
    code = parse(text)
    decoder = Decoder(code)
    poison = {kind: decoder.constant(bits, DTYPES[kind]) for kind, bits in POISON.items()}
    steps = [decoder.decode(instruction) for instruction in code.instructions]
    return Kernel(code, steps, [poison[kind] for kind in code.registers])


class Decoder:
    """What rules need of the code around an instruction."""

    def __init__(self, code: Code) -> None:
        self.code, self.threads = code, code.threads

    def decode(self, ins: Instruction) -> Decoded:
        rule_and_groups = rule_of(ins.opcode)
        if rule_and_groups is None:
            raise ins.unknown()
        build, groups = rule_and_groups
        try:
            step = build(self, ins, *groups)
        except (ValueError, KeyError, AttributeError) as error:  # not the operands that the rule takes apart
            raise ins.unknown("is not emulated with these operands") from error
        used = frozenset() if ins.opcode.startswith("wgmma") else frozenset(ins.registers())
        return Decoded(step, bool(GIVES_WAY.fullmatch(ins.opcode)), used, ins)

    def constant(self, bits: int, dtype: np.dtype) -> np.ndarray:
        if dtype.kind == "b":
            return np.full(self.threads, bits != 0)
        size = 8 * dtype.itemsize
        return np.full(self.threads, bits & ((1 << size) - 1), WHOLE[size]).view(dtype)

    def source(self, ins: Instruction, operand: Operand, kind: str, *, low: bool = False) -> Source:
        """How to read an operand as numbers of a kind; `low`: a wider register will do, its upper bits are left out."""
        dtype = DTYPES[kind]
        if isinstance(operand, Number):
            constant = self.constant(operand.bits, dtype)
            return lambda program: constant
        if isinstance(operand, Symbol) and dtype.itemsize == 4:
            name = operand.name
            if name not in ("%tid.x", "%ctaid.x", "%ctaid.y", "%ctaid.z", "global_smem"):
                raise ins.unknown(f"with {name} is not emulated")
            return lambda program: program.specials[name].view(dtype)
        if not isinstance(operand, Register):
            raise ins.unknown("is not emulated with such an operand")
        return self.of_register(ins, operand, dtype, low)

    def of_register(self, ins: Instruction, operand: Register, dtype: np.dtype, low: bool) -> Source:
        index, has = operand.index, DTYPES[operand.kind]
        if has == dtype:
            return lambda program: program.registers[index]
        if has.itemsize == dtype.itemsize and "b" not in (has.kind, dtype.kind):
            return lambda program: program.registers[index].view(dtype)
        if has.itemsize > dtype.itemsize and low:
            return lambda program: program.registers[index].astype(WHOLE[8 * dtype.itemsize]).view(dtype)
        raise ins.unknown(f"reads a register of {operand.kind} as {dtype}, which is not emulated")

    def target(self, ins: Instruction, operand: Operand, kind: str) -> Target:
        """How to write numbers of a kind to a register, in the threads that take part."""
        dtype = DTYPES[kind]
        if not isinstance(operand, Register) or DTYPES[operand.kind].itemsize != dtype.itemsize:
            raise ins.unknown(f"does not write {kind} to such an operand")
        index, has, live = operand.index, DTYPES[operand.kind], self.live(ins)

        def put(program: Program, values: np.ndarray) -> None:
            program.registers[index] = values.view(has)

        def put_where_live(program: Program, values: np.ndarray) -> None:
            program.registers[index] = np.where(live(program), values.view(has), program.registers[index])

        return put if ins.guard is None else put_where_live

    def live(self, ins: Instruction) -> Callable[[Program], Any]:
        """Which threads take part, as an index."""
        if ins.guard is None:
            return lambda program: slice(None)
        index = ins.guard.register.index
        if ins.guard.wanted:
            return lambda program: program.registers[index]
        return lambda program: ~program.registers[index]

    def address(self, ins: Instruction, operand: Operand) -> Source:
        if not isinstance(operand, Address):
            raise ins.unknown("is not emulated with such an address")
        wide = isinstance(operand.base, Register) and operand.base.kind == "b64"
        base, offset = self.source(ins, operand.base, "s64" if wide else "u32"), operand.offset
        return lambda program: base(program).astype(np.int64) + offset

    def unguarded(self, ins: Instruction) -> None:
        if ins.guard is not None:
            raise ins.unknown("is not emulated under a guard")


def parts(operand: Operand) -> tuple[Operand, ...]:
    return operand.parts if isinstance(operand, Vector) else (operand,)


def number(ins: Instruction, operand: Operand) -> int:
    if not isinstance(operand, Number):
        raise ins.unknown("is emulated with a number only, where it has a register")
    return operand.bits
