"""The processes of a grid: a new interpreter for every command, or warm ones that take one command after another.

A warm one has imported torch, has its context on the card and its libraries loaded: seconds that a short training would
spend again each time. One that has failed is never used again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hamburger.solvers.backend import VARIABLE

WORKER = (sys.executable, "-m", "hamburger.cli.worker")
HAM = (sys.executable, "-m", "hamburger")


class Running(Protocol):
    """A command that has been started."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def terminate(self) -> None: ...

    def wait(self) -> int: ...


class Fresh:
    """A new interpreter for every command."""

    def __init__(self, jobs: int) -> None:
        self.environment = {**os.environ}
        # side by side on few cores, every process with all threads would fight the others
        self.environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
        if jobs > 1:
            # kernels that wait for all of their programs must not wait for room that those of another process hold
            self.environment.setdefault(VARIABLE, "plain")

    def start(self, words: Sequence[str], log: Path) -> Running:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self.environment, start_new_session=True
            )

    def close(self) -> None:
        """Nothing waits for work here."""


class Warm(Fresh):
    """Interpreters that stay: as many as were ever needed at once. They end when this process closes them, or ends."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self.idle: list[Worker] = []

    def start(self, words: Sequence[str], log: Path) -> Running:
        if tuple(words[: len(HAM)]) != HAM:
            return super().start(words, log)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.idle = [worker for worker in self.idle if worker.alive()]
        worker = self.idle.pop() if self.idle else Worker(self.environment, log)
        worker.take(words[len(HAM) :], log)
        return Job(worker, self)

    def close(self) -> None:
        for worker in self.idle:
            worker.close()
        self.idle.clear()


class Worker:
    """One interpreter of `cli/worker.py`: a line in is a command, a line out is its exit status."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as file:  # what it says before its first command
            self.process = subprocess.Popen(
                WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout
        os.set_blocking(self.answers.fileno(), False)

    def take(self, words: Sequence[str], log: Path) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died, which the next look at it tells
            self.orders.write((json.dumps({"words": list(words), "log": str(log.absolute())}) + "\n").encode())
            self.orders.flush()

    def alive(self) -> bool:
        return self.process.poll() is None

    def answer(self) -> int | None:
        """The status of the command it was given last; its own where it has died over it; None while it works."""
        ended = self.process.poll()  # looked at first: what it has said before its end is read below
        line = self.answers.readline()
        if line.strip():
            return int(line)
        return None if ended is None else ended or 1

    def close(self) -> None:
        for end in (self.orders, self.answers):
            with contextlib.suppress(BrokenPipeError):
                end.close()
        self.process.wait()


class Job:
    """A command in a worker, which is free again when it is done."""

    def __init__(self, worker: Worker, owner: Warm) -> None:
        self.worker, self.owner = worker, owner
        self.status: int | None = None

    def poll(self) -> int | None:
        if self.status is None:
            self.status = self.worker.answer()
            if self.status == 0:
                self.owner.idle.append(self.worker)
            elif self.status is not None:
                self.worker.close()
        return self.status

    def terminate(self) -> None:
        if self.status is None:
            self.worker.process.terminate()

    def wait(self) -> int:
        if self.status is None:
            self.worker.process.wait()
            self.status = self.worker.process.returncode
            self.worker.close()
        return self.status
