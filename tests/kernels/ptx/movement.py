"""Loads, stores, shuffles and branches of the emulated instruction set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .decode import DTYPES, Decoder, Step, number, parts, rule
from .parse import Address, Instruction, Symbol
from .races import Fault

if TYPE_CHECKING:
    from .machine import Program


@rule(r"ld\.param\.([bsu]32|[bu]64)")
def parameter(decoder: Decoder, ins: Instruction, kind: str) -> Step:
    to, where = ins.operands
    if not isinstance(where, Address) or not isinstance(where.base, Symbol) or where.offset:
        raise ins.unknown("is not emulated with such an address")
    name = where.base.name
    if kind == "s32" and to.kind == "b64":  # a load widens, and with its sign
        put = decoder.target(ins, to, "s64")
        return lambda program: put(program, decoder.constant(program.parameters[name], DTYPES[kind]).astype(np.int64))
    put = decoder.target(ins, to, kind)
    return lambda program: put(program, decoder.constant(program.parameters[name], DTYPES[kind]))


@rule(r"ld\.(global|shared)(?:\.v([24]))?\.(b16|b32|b64)")
@rule(r"ld\.(global)\.cg(?:\.v([24]))?\.(b16|b32|b64)")  # past a cache that is not emulated
def load(decoder: Decoder, ins: Instruction, space: str, count: str | None, kind: str) -> Step:
    to, where = ins.operands
    puts = [decoder.target(ins, part, kind) for part in parts(to)]
    at, live = decoder.address(ins, where), decoder.live(ins)
    if len(puts) != int(count or 1):
        raise ins.unknown("does not load as many")
    dtype, shape = DTYPES[kind], (len(puts), decoder.threads)

    def step(program: Program) -> None:
        who = live(program)
        loaded = np.zeros(shape, dtype)
        memory = program.spaces[space]
        loaded[:, who] = memory.load(program, at(program)[who], program.warps[who], dtype, len(puts))
        for put, values in zip(puts, loaded, strict=True):
            put(program, values)

    return step


@rule(r"st\.(global|shared)(?:\.v([24]))?\.(b16|b32|b64)")
def store(decoder: Decoder, ins: Instruction, space: str, count: str | None, kind: str) -> Step:
    where, what = ins.operands
    sources = [decoder.source(ins, part, kind, low=True) for part in parts(what)]
    at, live = decoder.address(ins, where), decoder.live(ins)
    if len(sources) != int(count or 1):
        raise ins.unknown("does not store as many")

    def step(program: Program) -> None:
        who = live(program)
        values = np.stack([a(program)[who] for a in sources])
        program.spaces[space].store(program, at(program)[who], program.warps[who], values)

    return step


@rule(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x([124])\.shared\.b16")
def matrices(decoder: Decoder, ins: Instruction, way: str, digit: str) -> Step:
    """Matrices of 8 x 8 halves: lane l has the address of row l % 8 of matrix l // 8, and two halves of row l // 4."""
    decoder.unguarded(ins)
    where, what = ins.operands if way == "st" else reversed(ins.operands)
    count, at = int(digit), decoder.address(ins, where)
    registers = [decoder.source(ins, part, "b32") for part in parts(what)]
    puts = [decoder.target(ins, part, "b32") for part in parts(what)]
    if len(registers) != count:
        raise ins.unknown("does not move as many")
    thread = np.arange(decoder.threads)
    lane = thread % 32
    gives = lane < 8 * count
    rows = [thread - lane + 8 * i + lane // 4 for i in range(count)]  # who has the address of a thread's row

    def step(program: Program) -> None:
        address = at(program)
        places = np.stack([address[row] // 4 + lane % 4 for row in rows])
        halves, warps = program.shared.halves(address[gives], 16), program.warps[gives][:, None]
        if way == "st":
            program.shared.writes(program, halves, warps)
            program.shared.put_down(places, np.stack([a(program) for a in registers]))
            return
        program.shared.reads(program, halves, warps)
        for put, values in zip(puts, program.shared.raw.view(np.uint32)[places], strict=True):
            put(program, values)

    return step


@rule(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])\.trans\.shared\.b16")
def matrices_turned(decoder: Decoder, ins: Instruction, digit: str) -> Step:
    """As `matrices`, but what a lane gets are two halves of column l // 4, in rows that follow each other."""
    decoder.unguarded(ins)
    to, where = ins.operands
    count, at = int(digit), decoder.address(ins, where)
    puts = [decoder.target(ins, part, "b32") for part in parts(to)]
    if len(puts) != count:
        raise ins.unknown("does not move as many")
    thread = np.arange(decoder.threads)
    lane = thread % 32
    gives = lane < 8 * count

    def step(program: Program) -> None:
        address = at(program)
        halves, warps = program.shared.halves(address[gives], 16), program.warps[gives][:, None]
        program.shared.reads(program, halves, warps)
        shared_halves = program.shared.raw.view(np.uint16)
        for i, put in enumerate(puts):
            above, below = (
                shared_halves[address[thread - lane + 8 * i + lane % 4 * 2 + row] // 2 + lane // 4].astype(np.uint32)
                for row in range(2)
            )
            put(program, above | below << 16)

    return step


@rule(r"shfl\.sync\.(bfly|idx)\.b32")
def shuffle(decoder: Decoder, ins: Instruction, way: str) -> Step:
    decoder.unguarded(ins)
    to, what, lane, limit, members = ins.operands
    if (number(ins, limit), number(ins, members)) != (31, -1):
        raise ins.unknown("is not emulated within a part of a warp")
    thread, other = np.arange(decoder.threads), decoder.source(ins, lane, "u32")
    put, a = decoder.target(ins, to, "b32"), decoder.source(ins, what, "b32")

    def step(program: Program) -> None:
        lane = other(program).astype(np.int64) % 32
        put(program, a(program)[thread ^ lane if way == "bfly" else thread // 32 * 32 + lane])

    return step


@rule(r"(atom|red)\.global\.gpu\.(release|relaxed)\.add\.u32")
def add(decoder: Decoder, ins: Instruction, way: str, order: str) -> Step:
    *to, where, what = ins.operands
    puts = [decoder.target(ins, one, "u32") for one in to]
    if len(puts) != (way == "atom"):
        raise ins.unknown("does not return as many")
    at, a, live = decoder.address(ins, where), decoder.source(ins, what, "u32"), decoder.live(ins)

    def step(program: Program) -> None:
        who, before = live(program), np.zeros(decoder.threads, np.uint32)
        before[who] = program.memory.add(program, at(program)[who], a(program)[who], release=order == "release")
        for put in puts:
            put(program, before)

    return step


@rule(r"ld\.acquire\.gpu\.global\.b32")
def poll(decoder: Decoder, ins: Instruction) -> Step:
    to, where = ins.operands
    put, at = decoder.target(ins, to, "b32"), decoder.address(ins, where)
    if ins.guard is None:
        return lambda program: put(program, program.memory.acquire(program, at(program)))
    live = decoder.live(ins)

    def step(program: Program) -> None:  # the others know of it when all have met
        counts, who = np.zeros(decoder.threads, np.uint32), live(program)
        counts[who] = program.memory.acquire(program, at(program)[who], when_met=True)
        put(program, counts)

    return step


@rule(r"bar\.sync")
def meet(decoder: Decoder, ins: Instruction) -> Step:
    decoder.unguarded(ins)
    (barrier,) = ins.operands
    if number(ins, barrier) != 0:
        raise ins.unknown("is emulated for barrier 0 and all threads only")
    return lambda program: program.threads_meet()


@rule(r"bar\.red\.or\.pred")
def meet_and_tell(decoder: Decoder, ins: Instruction) -> Step:
    decoder.unguarded(ins)
    to, barrier, what = ins.operands
    if number(ins, barrier) != 0:
        raise ins.unknown("is emulated for barrier 0 and all threads only")
    put, predicate = decoder.target(ins, to, "pred"), decoder.source(ins, what, "pred")

    def step(program: Program) -> None:
        put(program, np.full(decoder.threads, predicate(program).any()))
        program.threads_meet()

    return step


@rule(r"fence\.proxy\.async\.shared::cta")
def fence(decoder: Decoder, ins: Instruction) -> Step:
    decoder.unguarded(ins)
    return lambda program: program.shared.fence()


@rule(r"bra(?:\.uni)?")
def branch(decoder: Decoder, ins: Instruction) -> Step:
    (label,) = ins.operands
    return jump(decoder, ins, decoder.code.labels[label.name])


@rule(r"ret")
def end(decoder: Decoder, ins: Instruction) -> Step:
    return jump(decoder, ins, len(decoder.code.instructions))


def jump(decoder: Decoder, ins: Instruction, place: int) -> Step:
    if ins.guard is None:
        return lambda program: place
    live = decoder.live(ins)

    def step(program: Program) -> int | None:
        who = live(program)
        if who.all():
            return place
        if who.any():
            raise Fault("threads of a program part ways, which is not emulated")
        return None

    return step
