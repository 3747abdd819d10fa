"""The form of every fuzzer, and mutations of bytes and JSON.

A case is a function of (fuzzer, seed, number) alone. Reading it must end in a clean refusal (a `HamburgerError` that
names a file of the case) or in a valid result, the same when it is read again, within limits of time and memory.
"""

from __future__ import annotations

import copy
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hamburger.errors import HamburgerError

Files = dict[str, bytes]
Mutation = Callable[[random.Random, Files], tuple[Files, str]]  # valid files -> damaged files and what was done
Reader = Callable[[Path], Any]  # the folder of a case -> arrays, tensors, plain values or containers of them

MAX_SECONDS = 30  # of processor time of one case; ten times as long by the clock, on a busy machine
MAX_MEBIBYTES = 600  # by which one case may raise the peak memory of the process: 2^26 pixels as RGBA take 510


class Case(NamedTuple):
    """`changed` is False for files without a mutation, which must be read without an error."""

    files: Files
    changed: bool
    note: str


class Fuzzer(NamedTuple):
    """`make`: some valid sets of files.   `names_file`: whether a refusal must name a file of the case.

    `quick`: cases in `make test`, fewer where each takes a tenth of a second.
    """

    make: Callable[[], list[Files]]
    mutate: Mutation
    read: Reader
    names_file: bool = True
    quick: int = 50

    def case(self, seed: int, number: int) -> Case:
        """Return the valid files unchanged under the first numbers, mutated ones under the others."""
        valid = _make_once(self.make)
        if number < len(valid):
            return Case(valid[number], False, "unchanged")
        source = random.Random(f"{seed} {number}")
        files, note = self.mutate(source, dict(source.choice(valid)))
        return Case(files, True, note)

    def check(self, case: Case, folder: Path) -> str:
        """Write the files into the folder and read them; return "read" or the message of the refusal.

        Raise AssertionError on any other outcome.
        """
        for name, content in case.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        try:
            with limit_resources(check_memory=case.changed):  # unchanged files may import libraries
                value = self.read(folder)
        except HamburgerError as error:
            message = str(error)
            assert case.changed, f"refused valid files: {message}"
            self.check_message(message, case, folder)
            return message
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} instead of a HamburgerError: {error!s:.300}") from error
        assert_equal(value, self.read(folder), "the second reading differs")
        return "read"

    def check_message(self, message: str, case: Case, folder: Path) -> None:
        named = str(folder) in message or any(Path(name).name in message for name in case.files)
        assert named or not self.names_file, f"the error names no file: {message:.300}"
        assert len(message) < 5000 and "Traceback" not in message, f"a long error: {message:.300}"
        hidden = [character for character in message if not character.isprintable() and character != "\n"]
        assert not hidden, f"characters {hidden[:5]} in the error: {message[:300]!r}"


@cache
def _make_once(make: Callable[[], list[Files]]) -> list[Files]:
    return make()


class Timeout(BaseException):
    """Not an Exception, so that no reader takes it for a damaged file."""


@contextmanager
def limit_resources(*, check_memory: bool = True) -> Iterator[None]:
    """Raise AssertionError where the block takes too long or too much memory."""

    def stop(*_: object) -> None:
        raise Timeout

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, MAX_SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 10 * MAX_SECONDS)}
    with suppress(OSError):  # Linux: forget an earlier peak, which would hide a new one
        Path("/proc/self/clear_refs").write_text("5")
    before, start = peak_mebibytes(), time.process_time()
    earlier = {number: signal.signal(number, stop) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    except Timeout:
        raise AssertionError(f"no result after {MAX_SECONDS} s") from None
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        seconds, growth = time.process_time() - start, peak_mebibytes() - before
        assert seconds < 2 * MAX_SECONDS, f"took {seconds:.0f} s"  # compiled code does not see the signal
        assert growth < MAX_MEBIBYTES or not check_memory, f"raised the peak memory by {growth:.0f} MiB"


def peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def assert_equal(one: Any, other: Any, note: str) -> None:
    assert type(one) is type(other), note
    if isinstance(one, dict):
        assert list(one) == list(other), note
        assert_equal(list(one.values()), list(other.values()), note)
    elif isinstance(one, tuple | list):
        assert len(one) == len(other), note
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b, note)
    elif isinstance(one, torch.Tensor):
        # byte by byte: NaN equals NaN
        assert one.dtype == other.dtype and one.shape == other.shape, note
        assert torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), note
    else:
        assert one == other or one != one, note


# -- mutations ---------------------------------------------------------------------------------------------------------

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def mutate_bytes(source: random.Random, content: bytes) -> tuple[bytes, str]:
    """Flip bits, overwrite with extreme integers, cut, repeat, insert or remove; one to four times."""
    data, notes = bytearray(content), []
    for _ in range(source.choice((1, 1, 2, 4))):
        place = source.randrange(len(data) + 1) if source.random() < 0.5 else source.randrange(min(len(data), 64) + 1)
        kind = source.choice(("flip", "flip", "integer", "cut", "repeat", "insert", "remove", "zeros"))
        length = source.choice((1, 2, 4, 8, 64))
        if kind == "flip" and place < len(data):
            data[place] ^= 1 << source.randrange(8)
        elif kind == "integer":
            value, order = source.choice(INTERESTING), source.choice(("little", "big"))
            data[place : place + length] = (value % 256 ** min(length, 8)).to_bytes(min(length, 8), order)
        elif kind == "cut":
            del data[place:]
        elif kind == "repeat":
            data[place:place] = data[place : place + length] * source.choice((1, 3, 100))
        elif kind == "insert":
            data[place:place] = source.randbytes(length)
        elif kind == "remove":
            del data[place : place + length]
        elif kind == "zeros":
            data[place : place + length] = bytes(length)
        notes.append(f"{kind} at {place}")
    return bytes(data), ", ".join(notes)


def mutate_file(name: str) -> Callable[[random.Random, Files], tuple[Files, str]]:
    def mutate(source: random.Random, files: Files) -> tuple[Files, str]:
        content, note = mutate_bytes(source, files[name])
        return {**files, name: content}, note

    return mutate


def mutate_inner(
    name: str, unpack: Callable[[bytes], bytes], pack: Callable[[bytes], bytes]
) -> Callable[[random.Random, Files], tuple[Files, str]]:
    """Mutate what is inside a container, and every third time the container itself."""

    def mutate(source: random.Random, files: Files) -> tuple[Files, str]:
        if source.random() < 1 / 3:
            return mutate_file(name)(source, files)
        content, note = mutate_bytes(source, unpack(files[name]))
        return {**files, name: pack(content)}, f"inside: {note}"

    return mutate


NASTY: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        10**4000,
        1.5,
        -0.5,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "0",
        "nan",
    ),
    *("a\0b", "\ud800", "../../x.png", "/etc/passwd", "x" * 5000, [], {}, [[]], [None] * 3, {"a": []}, [1, 2, 3, 4, 5]),
    *(
        [1, 1, -5, -5],
        [float("nan")] * 4,
        ["1", "2", "3", "4"],
        [True] * 4,
        [[1, 2], [3, 4]],
        [[0.0, 0, 1e9, 0, 0, 1e9]],
    ),
    *({"size": [1, 1], "counts": [1]}, {"size": [30, 40], "counts": "P" * 9}, {"size": "ab", "counts": [10**400]}),
)


def mutate_json(source: random.Random, value: Any) -> tuple[Any, str]:
    """Replace, remove or repeat values anywhere in a JSON document; some become deeply nested."""
    value, notes = copy.deepcopy(value), []
    for _ in range(source.choice((1, 1, 2, 5))):
        parent: Any = value
        steps: list[Any] = []
        while True:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            if not keys:
                break
            steps.append(source.choice(keys))
            child = parent[steps[-1]]
            if not isinstance(child, (dict, list)) or not child or source.random() < 0.2:
                break
            parent = child
        if not steps:
            continue
        kind = source.choice(("nasty", "nasty", "nasty", "remove", "repeat", "nest"))
        kind = (
            "nasty" if kind == "nest" and any(note.startswith("nest") for note in notes) else kind
        )  # json writes 1,000
        if kind == "nasty":
            parent[steps[-1]] = copy.deepcopy(source.choice(NASTY))
        elif kind == "remove":
            del parent[steps[-1]]
        elif kind == "nest":
            for _ in range(source.choice((3, 70, 400, 900))):
                parent[steps[-1]] = [parent[steps[-1]]] if source.random() < 0.9 else {"a": parent[steps[-1]]}
        elif isinstance(parent, list):
            parent.append(parent[steps[-1]])
        notes.append(f"{kind} at {steps}")
    return value, ", ".join(notes)


# -- pickles that ask for code, memory or time -------------------------------------------------------------------------

HOSTILE_PICKLES = {
    "calls os.system": b"cos\nsystem\n(S'echo fuzzed'\ntR.",
    "calls eval": b"\x80\x02cbuiltins\neval\n(X\x03\x00\x00\x001+1tR.",
    "2 GiB of bytes": b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x80\x00\x85R.",
    "40 GB tensor": b"\x80\x02}X\x01\x00\x00\x00actorch\nTensor\n\x8a\x05\x00\xe4\x0bT\x02\x85Rs.",
    "many tuples": b"\x80\x02(" + b"(" * 20_000 + b"t" * 20_001 + b".",
    "a deep key": b"\x80\x02}K\x01" + b"\x85" * 200_000 + b"K\x01s.",
    "a key of 2^60 parts": b"\x80\x02}K\x01" + b"q\x00h\x00\x86" * 60 + b"K\x01s.",
    "one text 3,000 times": b"\x80\x02U\xff"
    + b"a" * 255
    + b"q\x00"
    + b"c_codecs\nencode\nh\x00h\x00\x86R" * 3000
    + b".",
    "one list in many sets": b"\x80\x02(" + b"K\x01" * 9999 + b"lq\x00" + b"c__builtin__\nset\nh\x00\x85R" * 999 + b".",
    "a list of itself": b"\x80\x02]q\x00h\x00a.",
    "nothing": b"",
    "None": b"\x80\x02N.",
}
