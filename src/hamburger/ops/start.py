"""Start a Triton kernel with little of the host's time."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

# Triton's own start works out anew what each argument means for the program: some 40 us for 30 of them. Before 3.4 a
# compiled kernel took other arguments.
REMEMBERS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 4)
MOST = 4096  # programs to remember; sizes that never come again must not fill the memory

_compiled: dict[Any, Any] = {}


def start(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """`kernel[grid](*args, **options)`; the compiled program is remembered by all that Triton may compile it for.

    `args` come in the kernel's order, `options` are its constants and Triton's own options.
    """
    given = tuple([(a.dtype, a.data_ptr() % 16) if isinstance(a, Tensor) else a for a in args])
    key = (kernel, torch.cuda.current_device() if args[0].is_cuda else None, given, tuple(options.items()))
    compiled = _compiled.get(key)
    if compiled is not None:
        program, constants = compiled
        program[(*grid, 1, 1)[:3]](*args, *constants)
        return
    program = kernel[grid](*args, **options)
    if REMEMBERS and program is not None:  # the interpreter has none
        if len(_compiled) >= MOST:
            _compiled.clear()
        _compiled[key] = program, tuple(options[name] for name in kernel.arg_names[len(args) :])
