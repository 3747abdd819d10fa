"""Launch Triton kernels with little CPU time, and the launches that all fused solves share."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn

import torch
import triton
from torch import Tensor

from hamburger.errors import OptionError
from hamburger.kernels import common
from hamburger.kernels.tiling import TileSizes, cdiv, split_positions

# Triton's own start works out anew what each argument means for the program: some 40 us for 30 of them. Before 3.4 a
# compiled kernel took other arguments.
CACHES_PROGRAMS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 4)
MAX_PROGRAMS = 4096  # programs to remember; sizes that never come again must not fill the memory

_compiled: dict[Any, Any] = {}


class KernelLaunch(NamedTuple):
    """A program and all its arguments, constants included. `program` is None where Triton gave none away."""

    program: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]


class _LaunchRecorder(threading.local):
    launches: list[KernelLaunch] | None = None  # the launches of this thread, during a recording


recorder = _LaunchRecorder()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
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
        launch_compiled(program, full, (*args, *constants), current_stream())
    else:
        program, constants = kernel[grid](*args, **options), ()
        if CACHES_PROGRAMS and program is not None:  # the interpreter has none
            constants = tuple([options[name] for name in kernel.arg_names[len(args) :]])
            if len(_compiled) >= MAX_PROGRAMS:
                _compiled.clear()
            _compiled[key] = program, constants
        else:
            program = None
    if recorder.launches is not None:
        recorder.launches.append(KernelLaunch(program, full, (*args, *constants)))


def launch_compiled(program: Any, grid: tuple[int, ...], args: tuple[Any, ...] | list[Any], stream: int) -> None:
    """Start a compiled program on a stream of the current device. A tensor may be given as its address."""
    if has_launch_hook():
        program[grid](*args)
        return
    program.run(*grid, stream, program.function, program.packed_metadata, None, None, None, *args)


def current_stream() -> int:
    """Of the current device."""
    stream: int = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    return stream


def has_launch_hook() -> bool:
    """Whether a launch hook, usually a profiler's, is installed."""
    if not CACHES_PROGRAMS:  # Triton's own start tells them
        return False
    hook = triton.knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """Work where x is. To enter torch's own guard takes a while, and the device is the right one as a rule."""
    if not x.is_cuda or x.get_device() == torch._C._cuda_getDevice():
        return nullcontext()
    return torch.cuda.device_of(x)


# -- shared launches ---------------------------------------------------------------------------------------------------


COUNTERS_PER_IMAGE = 32  # that a solve in one launch may use, for each image
FEW_PARTS = 4  # parts, that are added up where they are used

# Whether kernels run in Triton's interpreter, on the CPU (TRITON_INTERPRET=1 before triton is imported).
INTERPRETED = not isinstance(common.sums_kernel, triton.JITFunction)


def product_kind(dtype: torch.dtype, *, fine: bool = False) -> str:
    """How products with X are made; they are always added up in float32.

    bfloat16 has the range of the factors, so they can be rounded to it. float16 has not: its products are TF32, which
    holds every float16. float32 is exact unless torch is told to use TF32. `fine` keeps more digits of the factor for
    half inputs: a softmax at a low temperature turns the ninth bit of a cosine into another cluster.
    """
    if dtype == torch.float32:
        return "tf32" if tf32_enabled() else "ieee"
    if dtype == torch.bfloat16 and not INTERPRETED:  # the interpreter cannot multiply bfloat16
        return "bf16x2" if fine else "bf16"
    if fine:
        return "tf32x2"
    return "ieee" if INTERPRETED else "tf32"  # the interpreter multiplies in full


def factor_product_kind(dtype: torch.dtype) -> str:
    """How products of factors alone are made."""
    return "ieee" if product_kind(dtype) == "ieee" else "tf32"


def saved_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of E, of Q, and of codes that wait for the backward pass: bfloat16 has their range, float16 has not."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def tf32_enabled() -> bool:
    """Torch's own switch for matrix products of float32."""
    flags = torch.backends.cuda.matmul
    precision = getattr(flags, "fp32_precision", None)  # torch 2.9; the older name then raises where both were set
    return bool(flags.allow_tf32) if precision is None else bool(precision == "tf32")


def refuse_second_derivative(ctx: Any, *cotangents: Tensor) -> NoReturn:
    raise OptionError(
        "decompose: backend 'fused' can be differentiated once, and a second derivative was requested "
        "(create_graph=True); take backend='plain'"
    )


def sum_over_positions(x: Tensor, codes: Tensor, t: TileSizes, kind: str, *, gram: bool) -> Tensor:
    """Sums over positions, in few parts.   x: b d n   codes: b n r   ->   b parts (d + e) r   (see `sums_kernel`)"""
    (b, d, n), r = x.shape, codes.shape[2]
    extra = r if gram else 1
    tiles = (cdiv(d, t.SD) + cdiv(extra, t.SD), cdiv(r, t.SR))
    length, parts = split_positions(n, b * tiles[0] * tiles[1], t.SN)
    out = torch.empty(b, parts, d + extra, r, dtype=torch.float32, device=x.device)
    launch(
        common.sums_kernel, (b * parts, *tiles),
        x, codes, out, d, n, r, length, *x.stride(),
        GRAM=gram, KIND=kind, SD=t.SD, SR=t.SR, SN=t.SN, num_warps=t.sum_warps,
    )  # fmt: skip
    # what uses them reads them in tiles, several times over: many parts are added up first, by many programs
    return out if parts <= FEW_PARTS else add_partial_sums(out)[:, None]


def add_partial_sums(sums: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """b parts ... in float32, added up over the parts in order   ->   b ..., of that dtype"""
    out = sums.new_empty(sums.shape[0], *sums.shape[2:], dtype=dtype)
    size = out[0].numel()
    launch(
        # all on the first axis: the others end at 65,535, and the gradient of a wide bread has more tiles
        common.partial_sums_kernel, (len(sums) * cdiv(size, 64),),
        sums, out, sums.shape[1], size, FP=32, BLOCK=64, num_warps=4,
    )  # fmt: skip
    return out


def zero_counters(b: int, device: torch.device) -> Tensor:
    """Zeros for each image, for programs that wait for each other.   ->   b COUNTERS_PER_IMAGE"""
    counters = torch.empty(b, COUNTERS_PER_IMAGE, dtype=torch.int32, device=device)
    launch(common.clear_kernel, (1,), counters, counters.numel(), BLOCK=1024, num_warps=4)
    return counters


def gram_matrix(bases: Tensor, dtype: torch.dtype, t: TileSizes) -> Tensor:
    """D^T D.   bases: b d r   ->   b r r"""
    b, d, r = bases.shape
    out = torch.empty(b, r, r, dtype=torch.float32, device=bases.device)
    tiles = cdiv(r, t.FG)
    launch(
        common.gram_kernel, (b, tiles, tiles),
        bases, out, d, r, KIND=factor_product_kind(dtype), FD=t.GD, FR=t.FG, num_warps=4,
    )  # fmt: skip
    return out
