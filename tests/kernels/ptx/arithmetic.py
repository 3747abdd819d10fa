"""Instructions on registers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .decode import DTYPES, WHOLE, Decoder, Step, number, rule
from .parse import Instruction, Vector

if TYPE_CHECKING:
    from .machine import Program

OF_ONE = {
    "ex2.approx": np.exp2, "rsqrt.approx.ftz": lambda a: 1 / np.sqrt(a), "sqrt.approx.ftz": np.sqrt,
    "rcp.approx.ftz": lambda a: 1 / a, "neg": np.negative, "abs": np.abs, "not": np.invert,
}  # fmt: skip
OF_TWO = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div.full": np.divide, "max": np.fmax, "min": np.fmin,
    "min.relu": lambda a, b: np.maximum(np.minimum(a, b), 0),
    "div": lambda a, b: np.where((a < 0) != (b < 0), -1, 1).astype(a.dtype) * (np.abs(a) // np.abs(b)),  # towards zero
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}  # fmt: skip


NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def with_one_nan(values: np.ndarray) -> np.ndarray:
    """A GPU returns one NaN bit pattern from arithmetic, which is not numpy's; later code may use the bits."""
    nan = np.isnan(values)
    return np.where(nan, NAN, values) if nan.any() else values


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 to the nearest, to even between two.   ->   uint16"""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """uint16   ->   float32"""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@rule(r"(add|sub)\.([su]16|[su]32|[su]64)")
@rule(r"(min|min\.relu|max|div)\.(s32)")
@rule(r"(and|or|xor)\.(b16|b32|b64|pred)")
@rule(r"(add|sub|mul|max|div\.full)\.(f32)")
def of_two(decoder: Decoder, ins: Instruction, name: str, kind: str) -> Step:
    to, left, right = ins.operands
    put, function = decoder.target(ins, to, kind), OF_TWO[name]
    a, b = decoder.source(ins, left, kind), decoder.source(ins, right, kind)
    if kind == "f32":
        return lambda program: put(program, with_one_nan(function(a(program), b(program))))
    return lambda program: put(program, function(a(program), b(program)))


@rule(r"(shl)\.(b16|b32|b64)")
@rule(r"(shr)\.([su]16|[su]32|[su]64)")
def shift(decoder: Decoder, ins: Instruction, name: str, kind: str) -> Step:
    if not 0 <= number(ins, ins.operands[2]) < 8 * DTYPES[kind].itemsize:
        raise ins.unknown("is not emulated for as many bits")
    return of_two(decoder, ins, name, kind)


@rule(r"(mul|mad)\.(wide)\.([su])(16)")
@rule(r"(mul|mad)\.(lo|wide)\.([su])(32|64)")
def multiply(decoder: Decoder, ins: Instruction, name: str, part: str, letter: str, bits: str) -> Step:
    if part == "wide" and bits == "64":
        raise ins.unknown()
    kind = letter + bits
    wide = kind if part == "lo" else f"{letter}{2 * int(bits)}"
    to, left, right, *more = ins.operands
    put, a, b = decoder.target(ins, to, wide), decoder.source(ins, left, kind), decoder.source(ins, right, kind)
    (addend,) = more if name == "mad" else (None,)
    dtype = DTYPES[wide]
    if addend is None:
        return lambda program: put(program, a(program).astype(dtype) * b(program))
    c = decoder.source(ins, addend, wide)
    return lambda program: put(program, a(program).astype(dtype) * b(program) + c(program))


@rule(r"fma\.rn\.(f32)")
def multiply_and_add(decoder: Decoder, ins: Instruction, kind: str) -> Step:
    """Of a float32 the product is exact in float64, and only the sum may be rounded twice."""
    to, *operands = ins.operands
    put, (a, b, c) = decoder.target(ins, to, kind), [decoder.source(ins, operand, kind) for operand in operands]

    def step(program: Program) -> None:
        whole = a(program).astype(np.float64) * b(program) + c(program)
        put(program, with_one_nan(whole.astype(np.float32)))

    return step


@rule(r"(neg)\.(s32|s64)")
@rule(r"(neg|abs|ex2\.approx|(?:rcp|r?sqrt)\.approx\.ftz)\.(f32)")
@rule(r"(not)\.(pred|b16|b32|b64)")
def of_one(decoder: Decoder, ins: Instruction, name: str, kind: str) -> Step:
    to, what = ins.operands
    put, a, function = decoder.target(ins, to, kind), decoder.source(ins, what, kind), OF_ONE[name]
    if kind == "f32":
        return lambda program: put(program, with_one_nan(function(a(program))))
    return lambda program: put(program, function(a(program)))


@rule(r"bfe\.([su]32)")
def extract(decoder: Decoder, ins: Instruction, kind: str) -> Step:
    """The highest of the bits is a sign where the kind has one."""
    to, whole, first, count = ins.operands
    put, a = decoder.target(ins, to, kind), decoder.source(ins, whole, kind)
    left, right = 32 - number(ins, first) - number(ins, count), 32 - number(ins, count)
    if not 0 <= left <= right < 32:
        raise ins.unknown("is not emulated for such bits")
    return lambda program: put(program, a(program) << left >> right)


@rule(r"setp\.(lt|le|gt|ge|eq|num)\.(f32)")  # none of them holds for NaN
@rule(r"setp\.(eq|ne)\.(b16|b32|b64)")
@rule(r"setp\.(eq|ne|lt|le|gt|ge)\.([su]32|[su]64)")
def compare(decoder: Decoder, ins: Instruction, name: str, kind: str) -> Step:
    to, left, right = ins.operands
    put, function = decoder.target(ins, to, "pred"), OF_TWO[name]
    a, b = decoder.source(ins, left, kind), decoder.source(ins, right, kind)
    return lambda program: put(program, function(a(program), b(program)))


@rule(r"selp\.(b16|b32|b64|f32)")
def select(decoder: Decoder, ins: Instruction, kind: str) -> Step:
    to, yes, no, which = ins.operands
    put, p = decoder.target(ins, to, kind), decoder.source(ins, which, "pred")
    a, b = decoder.source(ins, yes, kind), decoder.source(ins, no, kind)
    return lambda program: put(program, np.where(p(program), a(program), b(program)))


@rule(r"mov\.([bu]16|[bu]32|[bu]64|pred)")
def move(decoder: Decoder, ins: Instruction, kind: str) -> Step:
    to, what = ins.operands
    if isinstance(to, Vector):
        return take_apart(decoder, ins, kind)
    if isinstance(what, Vector):
        return put_together(decoder, ins, kind)
    put, a = decoder.target(ins, to, kind), decoder.source(ins, what, kind)
    return lambda program: put(program, a(program))


def take_apart(decoder: Decoder, ins: Instruction, kind: str) -> Step:
    """mov.b32 {%rs1, %rs2}, %r1: the lowest bits come first."""
    to, what = ins.operands
    bits = 8 * DTYPES[kind].itemsize // len(to.parts)
    puts, a = [decoder.target(ins, part, f"b{bits}") for part in to.parts], decoder.source(ins, what, kind)

    def step(program: Program) -> None:
        whole = a(program)
        for i, put in enumerate(puts):
            put(program, (whole >> whole.dtype.type(bits * i)).astype(WHOLE[bits]))

    return step


def put_together(decoder: Decoder, ins: Instruction, kind: str) -> Step:
    to, what = ins.operands
    dtype = DTYPES[kind]
    bits = 8 * dtype.itemsize // len(what.parts)
    put, sources = decoder.target(ins, to, kind), [decoder.source(ins, part, f"b{bits}") for part in what.parts]

    def step(program: Program) -> None:
        shifted = [a(program).astype(dtype) << dtype.type(bits * i) for i, a in enumerate(sources)]
        put(program, np.bitwise_or.reduce(shifted))

    return step


@rule(r"cvt\.([su]16|[su]32|[su]64)\.([su]16|[su]32|[su]64)")
@rule(r"cvt\.rn\.(f32)\.(s16)")
def convert(decoder: Decoder, ins: Instruction, to_kind: str, kind: str) -> Step:
    to, what = ins.operands
    put, a, dtype = decoder.target(ins, to, to_kind), decoder.source(ins, what, kind), DTYPES[to_kind]
    return lambda program: put(program, a(program).astype(dtype))


@rule(r"cvt\.(s16|s32)\.s8")
def convert_byte(decoder: Decoder, ins: Instruction, to_kind: str) -> Step:
    """The low byte of a register, with its sign."""
    to, what = ins.operands
    put, a, dtype = decoder.target(ins, to, to_kind), decoder.source(ins, what, "s16"), DTYPES[to_kind]
    return lambda program: put(program, a(program).astype(np.int8).astype(dtype))


@rule(r"cvt\.f32\.bf16")
def widen(decoder: Decoder, ins: Instruction) -> Step:
    to, what = ins.operands
    put, a = decoder.target(ins, to, "f32"), decoder.source(ins, what, "bf16")
    return lambda program: put(program, from_bfloat16(a(program)))


@rule(r"cvt\.rn\.bf16\.f32")
def narrow(decoder: Decoder, ins: Instruction) -> Step:
    to, what = ins.operands
    put, a = decoder.target(ins, to, "bf16"), decoder.source(ins, what, "f32")
    return lambda program: put(program, bfloat16_bits(a(program)))


@rule(r"cvt\.rn\.bf16x2\.f32")
def narrow_two(decoder: Decoder, ins: Instruction) -> Step:
    """The first operand goes to the upper half."""
    to, upper, lower = ins.operands
    put, a, b = decoder.target(ins, to, "b32"), decoder.source(ins, upper, "f32"), decoder.source(ins, lower, "f32")

    def step(program: Program) -> None:
        high, low = bfloat16_bits(a(program)).astype(np.uint32), bfloat16_bits(b(program))
        put(program, high << 16 | low)

    return step
