"""The text of PTX as data: what a kernel takes, its registers and its instructions. Nothing is run here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple


class Unknown(Exception):
    """PTX that the emulator does not know. It never guesses."""


class Register(NamedTuple):
    index: int
    kind: str  # as declared: pred, b16, b32, b64


class Number(NamedTuple):
    bits: int


class Symbol(NamedTuple):
    name: str  # %tid.x, a parameter, global_smem, a label


class Address(NamedTuple):
    base: Register | Symbol
    offset: int


class Vector(NamedTuple):
    parts: tuple[Operand, ...]


Operand = Register | Number | Symbol | Address | Vector


class Guard(NamedTuple):
    """@%p: only threads where the predicate is `wanted` take part."""

    register: Register
    wanted: bool


class Instruction(NamedTuple):
    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    text: str
    line: int  # in the text of PTX

    def unknown(self, why: str = "is not emulated") -> Unknown:
        return Unknown(f"{self.opcode} {why}: line {self.line}: {self.text[:160]}")

    def registers(self) -> set[int]:
        """All that it reads or writes."""
        indices, left = set(), [*self.operands]
        while left:
            operand = left.pop()
            if isinstance(operand, Register):
                indices.add(operand.index)
            elif isinstance(operand, Vector):
                left.extend(operand.parts)
            elif isinstance(operand, Address):
                left.append(operand.base)
        return indices | ({self.guard.register.index} if self.guard else set())


@dataclass
class Code:
    """One kernel. `registers` are the declared kinds of those that are used, `labels` places in `instructions`."""

    threads: int
    parameters: dict[str, str]  # name -> type
    registers: list[str] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def parse(text: str) -> Code:
    """The first kernel of a module, as Triton writes it: no functions; scopes are those of our own assembler."""
    entry = text.index(".entry")
    opening = text.index("{", entry)
    header = text[entry:opening]
    threads = re.search(r"\.reqntid\s+(\d+)", header)
    if threads is None:
        raise Unknown(f"a kernel without .reqntid: {header[:160]}")
    parameters = re.findall(r"\.param\s+\.(\w+)[^,)]*?(\w+)\s*[,)]", header)
    code = Code(int(threads[1]), {name: kind for kind, name in parameters})
    Parser(code).read(text[opening + 1 :].split("\n"), first=text.count("\n", 0, opening) + 1)
    return code


class Parser:
    """Fills in the code of a kernel, line by line."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.kinds: dict[str, str] = {}  # %rd -> b64
        self.registers: dict[str, Register] = {}

    def read(self, lines: list[str], first: int) -> None:
        statement, inside = "", 0
        for number, line in enumerate(lines, first):
            line = line.split("//")[0].strip()
            if line in "{}" and line:
                inside += 1 if line == "{" else -1
                if inside < 0:
                    return
                continue
            if not line or line.startswith((".loc", ".pragma")):
                continue
            if label := re.fullmatch(r"(\$\w+):", line):
                self.code.labels[label[1]] = len(self.code.instructions)
                continue
            *whole, statement = f"{statement} {line}".split(";")
            for one in whole:
                self.statement(one.strip(), number)
        raise Unknown("a kernel without an end")

    def statement(self, text: str, line: int) -> None:
        if declared := re.fullmatch(r"\.reg\s+\.(\w+)\s+(%\w+)<\d+>", text):
            self.kinds[declared[2]] = declared[1]
        elif named := re.fullmatch(r"\.reg\s+\.(\w+)\s+([a-z]\w*(?:\s*,\s*[a-z]\w*)*)", text):
            for name in re.split(r"\s*,\s*", named[2]):  # of the scope that has just begun
                self.keep(name, named[1])
        elif text:
            self.code.instructions.append(self.instruction(text, line))

    def instruction(self, text: str, line: int) -> Instruction:
        match = re.fullmatch(r"(?:@(!?)(%?\w+)\s+)?([a-z][\w.:]*)\s*(.*)", text, re.DOTALL)
        if match is None:
            raise Unknown(f"line {line}: {text[:160]}")
        negated, predicate, opcode, rest = match.groups()
        guard = Guard(self.register(predicate), negated == "") if predicate else None
        operands = re.findall(r"\{[^}]*\}|\[[^]]*\]|[^,\s]+", rest)
        try:
            return Instruction(opcode, tuple(self.operand(one) for one in operands), guard, text, line)
        except Unknown as error:
            raise Unknown(f"{opcode}: {error}: line {line}: {text[:160]}") from error

    def operand(self, text: str) -> Operand:
        if text in self.registers:
            return self.registers[text]
        if text.startswith("{"):
            return Vector(tuple(self.operand(part.strip()) for part in text[1:-1].split(",")))
        if text.startswith("["):
            return self.address(text)
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):  # the bits of a float32
            return Number(int(text[2:], 16))
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
            return Number(int(text, 0))
        if re.fullmatch(r"%[a-z]+\d+", text):
            return self.register(text)
        if re.fullmatch(r"[%$\w][\w.$]*", text):
            return Symbol(text)
        raise Unknown(f"operand {text}")

    def address(self, text: str) -> Address:
        match = re.fullmatch(r"\[\s*(%?\w+)\s*(?:\+\s*(-?\d+))?\s*\]", text)
        base = self.operand(match[1]) if match else None
        if not isinstance(base, Register | Symbol):
            raise Unknown(f"address {text}")
        return Address(base, int(match[2] or 0))

    def register(self, name: str) -> Register:
        if name not in self.registers:
            kind = self.kinds.get(name.rstrip("0123456789"))
            if kind is None:
                raise Unknown(f"register {name} was not declared")
            self.keep(name, kind)
        return self.registers[name]

    def keep(self, name: str, kind: str) -> None:
        self.registers[name] = Register(len(self.code.registers), kind)
        self.code.registers.append(kind)
