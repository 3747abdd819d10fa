"""Launch Triton kernels with little Python time: small problems are launch-bound.

`launch` caches the program that Triton compiled for a call. `launch_cached` caches the launches of a whole solve: the
first call of a kind records them, later calls repeat them with new addresses and one allocation for all intermediate
tensors. Only addresses change between such calls; tiles, strides and programs are the same. This is what a CUDA graph
does, without private memory and fixed addresses. Where addresses repeat, `cuda_graphs` replays the launches as one.

Tensors saved for the backward pass are packed into one allocation, which is as cheap to save as a single tensor.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hamburger.kernels.cuda_graphs import graph_cache, is_capturing
from hamburger.kernels.dispatch import LaunchError

# Triton derives anew at every launch what each argument means for the program: about 40 us for 30 arguments. Before
# 3.4 a compiled kernel took other arguments.
CACHES_PROGRAMS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 4)
MAX_PROGRAMS = 4096  # entries of the program cache: sizes that never come again must not fill the memory

_compiled: dict[Any, Any] = {}


class KernelLaunch(NamedTuple):
    """A program and all its arguments, constants included. `program` is None where Triton returned none."""

    program: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]


class _LaunchRecorder(threading.local):
    launches: list[KernelLaunch] | None = None  # the launches of this thread, during a recording


recorder = _LaunchRecorder()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run `kernel[grid](*args, **options)`, with the compiled program from a cache.

    `args` come in the kernel's order; `options` are its constants and Triton's own options.
    """
    # with their types: 2 and 2.0 are equal, but not to a program
    kinds = tuple([(a.dtype, a.data_ptr() % 16) if isinstance(a, Tensor) else (type(a), a) for a in args])
    key = (kernel, torch.cuda.current_device() if args[0].is_cuda else None, kinds, tuple(options.items()))
    compiled = _compiled.get(key)
    full = (*grid, 1, 1)[:3]
    if compiled is not None:
        program, constants = compiled
        launch_compiled(program, full, (*args, *constants), current_stream())
    else:
        program, constants = _compile_and_launch(kernel, grid, args, options), ()
        if CACHES_PROGRAMS and program is not None:  # the interpreter has none
            constants = tuple([options[name] for name in kernel.arg_names[len(args) :]])
            if len(_compiled) >= MAX_PROGRAMS:
                _compiled.clear()
            _compiled[key] = program, constants
        else:
            program = None
    if recorder.launches is not None:
        recorder.launches.append(KernelLaunch(program, full, (*args, *constants)))


def _compile_and_launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        # explicit, because Triton announces another default: the bits of results depend on it
        return kernel[grid](*args, enable_fp_fusion=True, **options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton raises many types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        name = getattr(kernel, "__name__", "a kernel")
        raise LaunchError(f"{name}: {type(error).__name__}: {lines[-1][:300]}") from error


T = TypeVar("T")
_unusable: set[str] = set()  # variants that do not compile
_warned: set[str] = set()


def try_variant(name: str, solve: Callable[[], T]) -> T | None:
    """`solve()`, or None where the driver refuses a cooperative launch or Triton cannot compile the variant's kernels.

    The driver knows limits that the device's properties do not show, such as a share of its multiprocessors: another
    call may succeed. What does not compile is not tried again.
    """
    if name in _unusable:
        return None
    recorded = None if recorder.launches is None else len(recorder.launches)
    try:
        return solve()
    except LaunchError as error:
        if not _is_refusal(error):
            _unusable.add(name)
        _warn_of_slower_variant(name, error)
        if recorder.launches is not None:
            del recorder.launches[recorded:]
        return None


def _is_refusal(error: RuntimeError) -> bool:
    return "cooperative" in str(error)


def _warn_of_slower_variant(name: str, error: RuntimeError) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"hamburger: the {name} kernels do not run here, so slower ones take over ({error})",
            RuntimeWarning,
            stacklevel=3,
        )


def launch_compiled(program: Any, grid: tuple[int, ...], args: tuple[Any, ...] | list[Any], stream: int) -> None:
    """Launch a compiled program on a stream of the current device. A tensor may be given as its address."""
    if has_launch_hook():
        program[grid](*args)
        return
    program.run(*grid, stream, program.function, program.packed_metadata, None, None, None, *args)


def current_stream() -> int:
    """The current stream of the current device."""
    stream: int = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    return stream


def has_launch_hook() -> bool:
    """Whether a launch hook, usually a profiler's, is installed."""
    if not CACHES_PROGRAMS:  # Triton's own launch calls it
        return False
    hook = triton.knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """Context manager: make the device of x current. Torch's own guard is slow, and the device is usually current."""
    if not x.is_cuda or x.get_device() == torch._C._cuda_getDevice():
        return nullcontext()
    return torch.cuda.device_of(x)


# -- packed tensors ----------------------------------------------------------------------------------------------------


ALIGNMENT = 512  # bytes, as torch aligns its memory


class PackedPiece(NamedTuple):
    """One tensor's place in the packed memory."""

    offset: int  # bytes
    size: int  # bytes
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class PackedLayout:
    """The place of each tensor in one allocation. Compared by identity, which makes look-ups fast."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.pieces: list[PackedPiece] = []
        self.size = 0
        for t in tensors:
            extent = 1 + sum((length - 1) * step for length, step in zip(t.shape, t.stride(), strict=True))
            size = extent * t.element_size() if t.numel() else 0
            self.pieces.append(PackedPiece(self.size, size, tuple(t.shape), t.stride(), t.dtype))
            self.size += _align(size)

    def tensors(self, memory: Tensor) -> list[Tensor]:
        return [memory[p.offset : p.offset + p.size].view(p.dtype).as_strided(p.shape, p.stride) for p in self.pieces]


class PackedTensors(NamedTuple):
    """Saved tensors: one allocation with its layout, or the tensors themselves if `layout` is None."""

    memory: tuple[Tensor, ...]
    layout: PackedLayout | None

    def tensors(self) -> Sequence[Tensor]:
        return self.memory if self.layout is None else self.layout.tensors(*self.memory)


def pack_tensors(tensors: Sequence[Tensor]) -> PackedTensors:
    """Copy the tensors into one allocation."""
    layout = PackedLayout(tensors)
    memory = torch.empty(layout.size, dtype=torch.uint8, device=tensors[0].device)
    for piece, tensor in zip(layout.tensors(memory), tensors, strict=True):
        piece.copy_(tensor)
    return PackedTensors((memory,), layout)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


# -- cached launches ---------------------------------------------------------------------------------------------------


MAX_CACHED = 1024  # entries of the launch cache

# What torch may do during a recording: allocate and view memory. Other calls would be missing from the cached launches.
ALLOWED_TORCH_CALLS = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "view", "_unsafe_view", "detach",
        "alias", "transpose", "permute", "expand", "slice", "select", "squeeze", "unsqueeze", "as_strided", "t",
    )
)  # fmt: skip

Outputs = tuple[Tensor, ...]
EMPTY = torch.empty(0)


class CachedLaunch(NamedTuple):
    """A launch without its addresses: argument `i` is `addresses[index] + offset` (see `CachedLaunches.play`)."""

    program: Any
    grid: tuple[int, ...]
    args: list[Any]
    pointers: tuple[tuple[int, int, int], ...]  # i, index, offset


class CachedLaunches(NamedTuple):
    """The launches of a solve, and the memory that they need besides the inputs."""

    launches: tuple[CachedLaunch, ...]
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]  # shape, stride, dtype
    saved: PackedLayout | None
    workspace: int  # bytes
    number: int  # unique in the process: a part of the key of their CUDA graphs

    def play(self, inputs: Sequence[int], device: torch.device) -> tuple[Outputs, PackedTensors]:
        """Repeat the launches with these addresses of the inputs, and new memory for everything else."""
        outputs = tuple(
            [torch.empty_strided(shape, stride, dtype=dtype, device=device) for shape, stride, dtype in self.outputs]
        )
        saved = EMPTY if self.saved is None else torch.empty(self.saved.size, dtype=torch.uint8, device=device)
        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=device)
        addresses = [*inputs, *[t.data_ptr() for t in outputs], saved.data_ptr(), workspace.data_ptr()]
        stream = current_stream()
        if is_capturing() or has_launch_hook():  # the caller's capture or profiler should see single launches
            self.launch_all(addresses, stream)
        else:
            key = self.number, stream, *addresses
            graph_cache.run(key, stream, lambda stream: self.launch_all(addresses, stream))
        return outputs, PackedTensors(() if self.saved is None else (saved,), self.saved)

    def launch_all(self, addresses: Sequence[int], stream: int) -> None:
        for program, grid, template, pointers in self.launches:
            args = template.copy()  # another thread may be repeating the same launches
            for i, index, offset in pointers:
                args[i] = addresses[index] + offset
            launch_compiled(program, grid, args, stream)


_cache: dict[Hashable, CachedLaunches | None] = {}
_numbers = itertools.count()


def launch_cached(solve: Callable[..., Outputs], inputs: Sequence[Tensor | None], *key: Hashable) -> Outputs:
    """Return `solve(*inputs)`, by the cached launches of an earlier call of the same kind if there is one.

    `solve` allocates memory, its outputs included, and launches kernels; if it does more, that is detected and it is
    called each time. `key` is everything it depends on besides dtypes, shapes and strides of the inputs. The first
    input determines the device.
    """
    return launch_cached_saving(lambda *inputs: (solve(*inputs), ()), inputs, *key)[0]


def launch_cached_saving(
    solve: Callable[..., tuple[Outputs, Outputs]], inputs: Sequence[Tensor | None], *key: Hashable
) -> tuple[Outputs, PackedTensors]:
    """`launch_cached` for a solve that returns outputs, and tensors to save: these are returned packed.

    The packed memory may be an input of other cached launches, with its layout in `key`.
    """
    first = inputs[0]
    assert first is not None
    if not first.is_cuda:
        return _call_uncached(solve, inputs)
    addresses = [0 if t is None else t.data_ptr() for t in inputs]
    # cached launches know only addresses: tensors of another device must have another key
    kinds = [
        None if t is None else (t.dtype, t.shape, t.stride(), t.get_device(), address % 16)
        for t, address in zip(inputs, addresses, strict=True)
    ]
    full_key = (key, *kinds)
    cached = _cache.get(full_key)
    if cached is not None and recorder.launches is None and _are_distinct(addresses):
        try:
            return cached.play(addresses, first.device)
        except RuntimeError as error:  # for example, this stream has fewer multiprocessors than the first one
            if not _is_refusal(error):
                raise
            _warn_of_slower_variant("cooperative", error)
            return _call_uncached(solve, inputs)
    if full_key in _cache or recorder.launches is not None or has_launch_hook() or not _are_distinct(addresses):
        return _call_uncached(solve, inputs)
    if len(_cache) >= MAX_CACHED:
        _cache.clear()
    outputs, packed, _cache[full_key] = record_launches(solve, inputs)
    return outputs, packed


def _call_uncached(
    solve: Callable[..., tuple[Outputs, Outputs]], inputs: Sequence[Tensor | None]
) -> tuple[Outputs, PackedTensors]:
    outputs, saved = solve(*inputs)
    return outputs, PackedTensors(saved, None)


def _are_distinct(addresses: Sequence[int]) -> bool:
    """Whether no tensor is passed twice: its address would not tell which of the two inputs a launch uses."""
    known = [address for address in addresses if address]
    return len(set(known)) == len(known)


def record_launches(
    solve: Callable[..., tuple[Outputs, Outputs]], inputs: Sequence[Tensor | None]
) -> tuple[Outputs, PackedTensors, CachedLaunches | None]:
    """Return `solve(*inputs)` and its launches, or None in their place if it did more than launch kernels."""
    recorder.launches = []
    try:
        with _TorchCallDetector() as torch_calls:  # type: ignore[no-untyped-call]
            outputs, saved = solve(*inputs)
        launches = recorder.launches
    finally:
        recorder.launches = None
    unpacked = PackedTensors(saved, None)
    if torch_calls.detected or any(launch.program is None for launch in launches):
        return outputs, unpacked, None
    packed = pack_tensors(saved) if saved else unpacked
    cached = build_cached_launches(launches, inputs, outputs, saved, packed.layout)
    return (outputs, unpacked, None) if cached is None else (outputs, packed, cached)


class _TorchCallDetector(TorchDispatchMode):
    detected = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.detected |= func._schema.name not in ALLOWED_TORCH_CALLS
        return func(*args, **(kwargs or {}))


def build_cached_launches(
    launches: Sequence[KernelLaunch],
    inputs: Sequence[Tensor | None],
    outputs: Outputs,
    saved: Outputs = (),
    layout: PackedLayout | None = None,
) -> CachedLaunches | None:
    """Replace every tensor argument by an index into the addresses of `CachedLaunches.play`, and an offset.

    None if an argument is a view into the middle of an input, whose offset may differ between calls. In packed memory
    it does not: the layout is part of the key.
    """
    present = [(i, t) for i, t in enumerate(inputs) if t is not None and t.numel()]
    input_at = {t.data_ptr(): i for i, t in present}
    packed_input = {_storage(t): (i, t.data_ptr()) for i, t in present if t.dtype == torch.uint8}
    foreign = {_storage(t) for _, t in present}
    written = [_storage(t) for t in (*outputs, *saved) if t.numel()]
    if len(set(written)) < len(written) or not foreign.isdisjoint(written):
        return None  # two tensors in one storage, which would become two
    # storages that the launches wrote: index, and the address at offset 0
    outputs_by_storage = {_storage(t): (len(inputs) + i, t.data_ptr()) for i, t in enumerate(outputs) if t.numel()}
    if layout is not None:
        for t, piece in zip(saved, layout.pieces, strict=True):
            if t.numel():
                outputs_by_storage[_storage(t)] = len(inputs) + len(outputs), t.data_ptr() - piece.offset
    offsets, workspace = _plan_workspace(launches, {*foreign, *outputs_by_storage})
    cached = []
    for launch in launches:
        args, pointers = list(launch.args), []
        for i, arg in enumerate(launch.args):
            if not isinstance(arg, Tensor):
                continue
            args[i], address, storage = 0, arg.data_ptr(), _storage(arg)
            if not arg.numel():
                continue
            if storage in outputs_by_storage:
                index, begin = outputs_by_storage[storage]
                pointers.append((i, index, address - begin))
            elif storage not in foreign:
                pointers.append((i, len(inputs) + len(outputs) + 1, offsets[storage] + address - storage))
            elif address in input_at:
                pointers.append((i, input_at[address], 0))
            elif storage in packed_input:
                index, begin = packed_input[storage]
                pointers.append((i, index, address - begin))
            else:
                return None
        cached.append(CachedLaunch(launch.program, launch.grid, args, tuple(pointers)))
    specs = tuple((tuple(t.shape), t.stride(), t.dtype) for t in outputs)
    return CachedLaunches(tuple(cached), specs, layout, workspace, next(_numbers))


def _storage(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _plan_workspace(launches: Sequence[KernelLaunch], known: Collection[int]) -> tuple[dict[int, int], int]:
    """Offsets of the intermediate storages in the workspace: those that are never in use together may share memory.

    ->   offset of each storage,  bytes in all
    """
    uses: dict[int, tuple[int, int, int]] = {}  # storage: first launch, last launch, bytes
    for i, launch in enumerate(launches):
        for arg in launch.args:
            if isinstance(arg, Tensor) and arg.numel() and _storage(arg) not in known:
                first = uses.get(_storage(arg), (i, i, 0))[0]
                uses[_storage(arg)] = first, i, _align(arg.untyped_storage().nbytes())
    offsets: dict[int, int] = {}
    for storage, (first, last, size) in sorted(uses.items(), key=lambda item: -item[1][2]):
        concurrent = [s for s in offsets if uses[s][0] <= last and first <= uses[s][1]]
        offset = 0
        for other in sorted(concurrent, key=offsets.__getitem__):
            if offset + size <= offsets[other]:
                break  # a gap that is large enough
            offset = max(offset, offsets[other] + uses[other][2])
        offsets[storage] = offset
    return offsets, max((offsets[s] + uses[s][2] for s in offsets), default=0)
