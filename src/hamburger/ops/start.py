"""Start a Triton kernel with little of the host's time."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

# Triton's own start works out anew what each argument means for the program: some 40 us for 30 of them. Before 3.4 a
# compiled kernel took other arguments.
REMEMBERS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 4)
MOST = 4096  # programs to remember; sizes that never come again must not fill the memory

_compiled: dict[Any, Any] = {}


class Launch(NamedTuple):
    """A program and all its arguments, constants included. `program` is None where Triton gave none away."""

    program: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]


class _Watched(threading.local):
    launches: list[Launch] | None = None  # those of this thread, while somebody keeps a record


watched = _Watched()


def start(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """`kernel[grid](*args, **options)`; the compiled program is remembered by all that Triton may compile it for.

    `args` come in the kernel's order, `options` are its constants and Triton's own options.
    """
    # 2 and 2.0 are equal, but not to a program
    given = tuple([(a.dtype, a.data_ptr() % 16) if isinstance(a, Tensor) else (type(a), a) for a in args])
    key = (kernel, torch.cuda.current_device() if args[0].is_cuda else None, given, tuple(options.items()))
    compiled = _compiled.get(key)
    full = (*grid, 1, 1)[:3]
    if compiled is not None:
        program, constants = compiled
        run(program, full, (*args, *constants), current_stream())
    else:
        program, constants = kernel[grid](*args, **options), ()
        if REMEMBERS and program is not None:  # the interpreter has none
            constants = tuple([options[name] for name in kernel.arg_names[len(args) :]])
            if len(_compiled) >= MOST:
                _compiled.clear()
            _compiled[key] = program, constants
        else:
            program = None
    if watched.launches is not None:
        watched.launches.append(Launch(program, full, (*args, *constants)))


def run(program: Any, grid: tuple[int, ...], args: tuple[Any, ...] | list[Any], stream: int) -> None:
    """Start a compiled program on a stream of the current device. A tensor may be given as its address."""
    if hooked():
        program[grid](*args)
        return
    program.run(*grid, stream, program.function, program.packed_metadata, None, None, None, *args)


def current_stream() -> int:
    """Of the current device."""
    stream: int = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    return stream


def hooked() -> bool:
    """Whether somebody, a profiler as a rule, wants to be told of every launch."""
    if not REMEMBERS:  # Triton's own start tells them
        return False
    hook = triton.knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """Work where x is. To enter torch's own guard takes a while, and the device is the right one as a rule."""
    if not x.is_cuda or x.get_device() == torch._C._cuda_getDevice():
        return nullcontext()
    return torch.cuda.device_of(x)
