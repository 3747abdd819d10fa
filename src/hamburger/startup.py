"""Ctrl-C while `ham` starts: one line and exit status 130, not a traceback out of an import.

The import of torch takes seconds, and it precedes every line of `hamburger.cli`. So `hamburger/__init__.py` imports
this module first.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"ham: interrupted\n")
    os._exit(130)  # nothing is open yet; an exception could be swallowed by the import it interrupts


def _is_ham() -> bool:
    """Whether this process is `ham` or `python -m hamburger`; argv[0] is "-m" while Python imports the package."""
    command, arguments = sys.argv[0] if sys.argv else "", sys.orig_argv
    return Path(command).stem == "ham" or (
        command == "-m" and arguments[arguments.index("-m") + 1 :][:1] == ["hamburger"]
    )


def end_startup() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_ham() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
    signal.signal(signal.SIGINT, _end)
