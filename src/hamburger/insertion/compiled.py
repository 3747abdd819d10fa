"""What torch.compile made of a network before its contexts came or went.

Compiled code does not look for hooks again, so it would run a network without a context that was put in since, and with
one that is gone. Both functions do something only where the compiler is in use: to import it takes seconds.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def uncompiled() -> AbstractContextManager[Any]:
    """Run a compiled network as it is written, with the hooks of a dry run."""
    return torch.compiler.set_stance("force_eager") if _in_use() else nullcontext()


def compile_again() -> None:
    """Have all networks compiled anew at their next call: which of them hold the changed one nobody knows."""
    if _in_use():
        torch.compiler.reset()


def _in_use() -> bool:
    return "torch._dynamo" in sys.modules
