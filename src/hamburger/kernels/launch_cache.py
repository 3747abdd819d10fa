"""Cache the launches of a solve and repeat them with other memory: small problems are launch-bound.

A solve of several kernels is a few microseconds of work for a GPU and hundreds for Python, which computes the same
tiles, strides and programs at every call. Only addresses change between calls. So the first call of a kind is recorded;
later calls allocate one workspace for all intermediate memory and launch the same programs at once. This is what a CUDA
graph does, without its private memory, fixed addresses and capture. You may still capture these launches in one.
Tensors that wait for the backward pass are packed into one piece of memory: allocating, saving and viewing it takes as
much CPU time as a single tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hamburger.kernels.launcher import KernelLaunch, current_stream, has_launch_hook, launch_compiled, recorder

ALIGNMENT = 512  # bytes, as torch aligns its memory


class PackedPiece(NamedTuple):
    """One tensor's place in the packed memory."""

    place: int
    size: int  # bytes
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class PackedLayout:
    """The place of each tensor. Compared by identity, which makes look-ups fast."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.pieces: list[PackedPiece] = []
        self.size = 0
        for t in tensors:
            extent = 1 + sum((length - 1) * step for length, step in zip(t.shape, t.stride(), strict=True))
            size = extent * t.element_size() if t.numel() else 0
            self.pieces.append(PackedPiece(self.size, size, tuple(t.shape), t.stride(), t.dtype))
            self.size += -(-size // ALIGNMENT) * ALIGNMENT

    def tensors(self, memory: Tensor) -> list[Tensor]:
        return [memory[p.place : p.place + p.size].view(p.dtype).as_strided(p.shape, p.stride) for p in self.pieces]


class PackedTensors(NamedTuple):
    """`layout` of the single piece that is kept, or None where each tensor is kept for itself."""

    kept: tuple[Tensor, ...]
    layout: PackedLayout | None

    def tensors(self) -> Sequence[Tensor]:
        return self.kept if self.layout is None else self.layout.tensors(*self.kept)


def pack_tensors(tensors: Sequence[Tensor]) -> PackedTensors:
    """Copies of the tensors in one piece of memory."""
    layout = PackedLayout(tensors)
    memory = torch.empty(layout.size, dtype=torch.uint8, device=tensors[0].device)
    for own, given in zip(layout.tensors(memory), tensors, strict=True):
        own.copy_(given)
    return PackedTensors((memory,), layout)


# -- cached launches ---------------------------------------------------------------------------------------------------


MAX_CACHED = 1024  # entries of the cache

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
    """A launch with holes: argument `i` is the address of `where` plus `offset`."""

    program: Any
    grid: tuple[int, ...]
    args: list[Any]
    holes: tuple[tuple[int, int, int], ...]  # i, where, offset


class OutputSpec(NamedTuple):
    """An output: how to make memory for it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class CachedLaunches(NamedTuple):
    """Launches on the given tensors, new outputs, saved tensors in one piece of memory, and a workspace."""

    steps: tuple[CachedLaunch, ...]
    outputs: tuple[OutputSpec, ...]
    kept: PackedLayout | None
    workspace: int  # bytes

    def play(self, given: Sequence[int], device: torch.device) -> tuple[Outputs, PackedTensors]:
        """Repeat the launches with the addresses of the given tensors and of new memory for everything else."""
        outputs = tuple([torch.empty_strided(m.shape, m.stride, dtype=m.dtype, device=device) for m in self.outputs])
        kept = EMPTY if self.kept is None else torch.empty(self.kept.size, dtype=torch.uint8, device=device)
        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=device)
        memory = [*given, *[t.data_ptr() for t in outputs], kept.data_ptr(), workspace.data_ptr()]
        stream = current_stream()
        for program, grid, template, holes in self.steps:
            args = template.copy()  # another thread may be repeating the same launches
            for i, where, offset in holes:
                args[i] = memory[where] + offset
            launch_compiled(program, grid, args, stream)
        return outputs, PackedTensors(() if self.kept is None else (kept,), self.kept)


_cache: dict[Hashable, CachedLaunches | None] = {}


def launch_cached(solve: Callable[..., Outputs], given: Sequence[Tensor | None], *facts: Hashable) -> Outputs:
    """Return `solve(*given)`, by the cached launches of an earlier call of the same kind if there is one.

    `solve` allocates memory and launches kernels; if it does more, that is detected and it is called each time. `facts`
    is everything it depends on besides dtypes, shapes and strides of the given tensors. It allocates its outputs
    itself. The first given tensor determines the device.
    """
    return launch_cached_saving(lambda *given: (solve(*given), ()), given, *facts)[0]


def launch_cached_saving(
    solve: Callable[..., tuple[Outputs, Outputs]], given: Sequence[Tensor | None], *facts: Hashable
) -> tuple[Outputs, PackedTensors]:
    """`launch_cached` for a solve that also saves tensors for other cached launches: they are returned packed.

    Their memory may be given to other cached launches, with the layout as a fact.
    """
    first = given[0]
    assert first is not None
    if not first.is_cuda:
        return _unpacked(solve(*given))
    places = [0 if t is None else t.data_ptr() for t in given]
    # cached launches know only addresses: tensors of another device must have another key
    kinds = [
        None if t is None else (t.dtype, t.shape, t.stride(), t.get_device(), p % 16)
        for t, p in zip(given, places, strict=True)
    ]
    key = (facts, *kinds)
    cached = _cache.get(key)
    if cached is not None and recorder.launches is None and _are_distinct(places):
        return cached.play(places, first.device)
    if key in _cache or recorder.launches is not None or has_launch_hook() or not _are_distinct(places):
        return _unpacked(solve(*given))
    if len(_cache) >= MAX_CACHED:
        _cache.clear()
    outputs, packed, _cache[key] = record_launches(solve, given)
    return outputs, packed


def _unpacked(found: tuple[Outputs, Outputs]) -> tuple[Outputs, PackedTensors]:
    outputs, kept = found
    return outputs, PackedTensors(kept, None)


def _are_distinct(places: Sequence[int]) -> bool:
    """Whether no tensor was given twice: its address would not say in which part it is meant."""
    known = [place for place in places if place]
    return len(set(known)) == len(known)


def record_launches(
    solve: Callable[..., tuple[Outputs, Outputs]], given: Sequence[Tensor | None]
) -> tuple[Outputs, PackedTensors, CachedLaunches | None]:
    """Return `solve(*given)` and its launches; None in their place if it did more than launch kernels."""
    recorder.launches = []
    try:
        with _TorchCallDetector() as torch_too:  # type: ignore[no-untyped-call]
            outputs, kept = solve(*given)
        launches = recorder.launches
    finally:
        recorder.launches = None
    apart = PackedTensors(kept, None)
    if torch_too.worked or any(launch.program is None for launch in launches):
        return outputs, apart, None
    packed = pack_tensors(kept) if kept else apart
    cached = build_cached_launches(launches, given, outputs, kept, packed.layout)
    return (outputs, apart, None) if cached is None else (outputs, packed, cached)


class _TorchCallDetector(TorchDispatchMode):
    worked = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.worked |= func._schema.name not in ALLOWED_TORCH_CALLS
        return func(*args, **(kwargs or {}))


def build_cached_launches(
    launches: Sequence[KernelLaunch],
    given: Sequence[Tensor | None],
    outputs: Outputs,
    kept: Outputs = (),
    layout: PackedLayout | None = None,
) -> CachedLaunches | None:
    """None where a launch looks into the middle of something given: its place there is not known to be the same.

    In packed memory it is: the layout is a fact of the call.
    """
    where = {t.data_ptr(): i for i, t in enumerate(given) if t is not None and t.numel()}
    whole = {
        _base(t): (i, t.data_ptr())
        for i, t in enumerate(given)
        if t is not None and t.numel() and t.dtype == torch.uint8
    }
    foreign = {_base(t) for t in given if t is not None and t.numel()}
    # the place of the memory that the launches used, in the numbering of `Tape.play`
    made = {_base(t): (len(given) + i, t.data_ptr()) for i, t in enumerate(outputs) if t.numel()}
    own = [_base(t) for t in (*outputs, *kept) if t.numel()]
    if len(set(own)) < len(own) or not foreign.isdisjoint(own):
        return None  # two in one memory, which would become two
    if layout is not None:
        for t, piece in zip(kept, layout.pieces, strict=True):
            if t.numel():
                made[_base(t)] = len(given) + len(outputs), t.data_ptr() - piece.place
    places, size = _pack(launches, {*foreign, *made})
    steps = []
    for launch in launches:
        args, holes = list(launch.args), []
        for i, arg in enumerate(launch.args):
            if not isinstance(arg, Tensor):
                continue
            args[i], place, base = 0, arg.data_ptr(), _base(arg)
            if not arg.numel():
                continue
            if base in made:
                index, begin = made[base]
                holes.append((i, index, place - begin))
            elif base not in foreign:
                holes.append((i, len(given) + len(outputs) + 1, places[base] + place - base))
            elif place in where:
                holes.append((i, where[place], 0))
            elif base in whole:
                index, begin = whole[base]
                holes.append((i, index, place - begin))
            else:
                return None
        steps.append(CachedLaunch(launch.program, launch.grid, args, tuple(holes)))
    memory = tuple(OutputSpec(tuple(t.shape), t.stride(), t.dtype) for t in outputs)
    return CachedLaunches(tuple(steps), memory, layout, size)


def _base(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _pack(launches: Sequence[KernelLaunch], known: Collection[int]) -> tuple[dict[int, int], int]:
    """Places in the workspace for the memory in between: the same place for what is never needed at the same time.

    ->   place of each storage,  bytes in all
    """
    spans: dict[int, tuple[int, int, int]] = {}  # storage: first launch, last launch, bytes
    for i, launch in enumerate(launches):
        for arg in launch.args:
            if isinstance(arg, Tensor) and arg.numel() and _base(arg) not in known:
                first = spans.get(_base(arg), (i, i, 0))[0]
                spans[_base(arg)] = first, i, -(-arg.untyped_storage().nbytes() // ALIGNMENT) * ALIGNMENT
    places: dict[int, int] = {}
    for base, (first, last, size) in sorted(spans.items(), key=lambda item: -item[1][2]):
        place = 0
        for other in sorted((o for o in places if _overlap(spans[o], first, last)), key=lambda o: places[o]):
            if place + size <= places[other]:
                break  # a gap that is large enough
            place = max(place, places[other] + spans[other][2])
        places[base] = place
    return places, max((places[base] + spans[base][2] for base in places), default=0)


def _overlap(span: tuple[int, int, int], first: int, last: int) -> bool:
    return span[0] <= last and first <= span[1]
