"""Turns Ctrl-C and SIGTERM into a flag that the training loop checks between steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """`with StopSignal() as stop:` sets `stop.name` on Ctrl-C or SIGTERM; a second one acts as usual."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.name is not None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # Python handles signals in the main thread only
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
