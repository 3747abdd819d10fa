"""Several tensors in one piece of memory: to take it, to keep it and to look at it costs the host as much as one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hamburger.kernels.cuda_graphs import GraphCache
from hamburger.kernels.launcher import KernelLaunch, current_stream, has_launch_hook, launch_compiled, recorder

ALIGNMENT = 512  # bytes, as torch aligns its memory


class PackedPiece(NamedTuple):
    place: int
    size: int  # bytes
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class PackedLayout:
    """Where each of them lies. Equal to itself alone, so that it is quickly looked up."""

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
    """Copies of them."""
    layout = PackedLayout(tensors)
    memory = torch.empty(layout.size, dtype=torch.uint8, device=tensors[0].device)
    for own, given in zip(layout.tensors(memory), tensors, strict=True):
        own.copy_(given)
    return PackedTensors((memory,), layout)


# ----------------------------------------------------------------------------------------------------------------------
# Launches made once and made again with other memory: for a small problem the host is what everybody waits for.
#
# A solve of several kernels is a few microseconds of work for a card and hundreds for Python, which works out the same
# tiles, strides and programs at every call. Only addresses change from one call to the next. So the first call of a kind
# is watched; later ones take one piece of memory for everything in between and start the same programs at once. This is
# what a CUDA graph does, without its private memory, its fixed addresses and its capture; where addresses repeat,
# `replay` makes one after all.


MAX_CACHED = 1024  # tapes to remember

# What torch may do while it is watched: take memory, and look at memory in another way. All else would be missing.
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
    """Launches whose memory is what is given, new outputs, what is kept beside them in one piece, and a workspace."""

    steps: tuple[CachedLaunch, ...]
    outputs: tuple[OutputSpec, ...]
    kept: PackedLayout | None
    workspace: int  # bytes
    recordings: GraphCache

    def play(self, given: Sequence[int], device: torch.device) -> tuple[Outputs, PackedTensors]:
        """The launches again, with the addresses of what is given and of new memory for all else."""
        outputs = tuple([torch.empty_strided(m.shape, m.stride, dtype=m.dtype, device=device) for m in self.outputs])
        kept = EMPTY if self.kept is None else torch.empty(self.kept.size, dtype=torch.uint8, device=device)
        workspace = torch.empty(self.workspace, dtype=torch.uint8, device=device)
        memory = [*given, *[t.data_ptr() for t in outputs], kept.data_ptr(), workspace.data_ptr()]
        stream = current_stream()
        key = stream, *memory
        if not self.recordings.play(key, stream):
            self.start(memory, stream)
            self.recordings.note(key, lambda other: self.start(memory, other))
        return outputs, PackedTensors(() if self.kept is None else (kept,), self.kept)

    def start(self, memory: Sequence[int], stream: int) -> None:
        for program, grid, template, holes in self.steps:
            args = template.copy()  # another thread may be playing the same tape
            for i, where, offset in holes:
                args[i] = memory[where] + offset
            launch_compiled(program, grid, args, stream)


_cache: dict[Hashable, CachedLaunches | None] = {}


def launch_cached(solve: Callable[..., Outputs], given: Sequence[Tensor | None], *facts: Hashable) -> Outputs:
    """`solve(*given)`, by the launches of an earlier call where one was of the same kind.

    `solve` takes memory and launches kernels; where it does more, that is noticed, and it is simply called each time.
    `facts` is everything that it depends on beside the kind of what is given. Its outputs are its own, not given ones.
    The first of the given is where all of it happens.
    """
    return launch_cached_saving(lambda *given: (solve(*given), ()), given, *facts)[0]


def launch_cached_saving(
    solve: Callable[..., tuple[Outputs, Outputs]], given: Sequence[Tensor | None], *facts: Hashable
) -> tuple[Outputs, PackedTensors]:
    """The same for what also keeps tensors that only another tape will look at: they come as a bundle.

    Its memory may be given to another tape, with its layout as a fact.
    """
    first = given[0]
    assert first is not None
    if not first.is_cuda:
        return _unpacked(solve(*given))
    places = [0 if t is None else t.data_ptr() for t in given]
    # a tape knows addresses alone: what was moved to another device must not meet it
    kinds = [
        None if t is None else (t.dtype, t.shape, t.stride(), t.get_device(), p % 16)
        for t, p in zip(given, places, strict=True)
    ]
    key = (facts, *kinds)
    tape = _cache.get(key)
    if tape is not None and recorder.launches is None and _are_distinct(places):
        return tape.play(places, first.device)
    if key in _cache or recorder.launches is not None or has_launch_hook() or not _are_distinct(places):
        return _unpacked(solve(*given))
    if len(_cache) >= MAX_CACHED:
        _cache.clear()
    outputs, bundle, _cache[key] = record_launches(solve, given)
    return outputs, bundle


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
    """`solve(*given)`, and the tape of it; None where launches are not all of it."""
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
    bundle = pack_tensors(kept) if kept else apart
    tape = build_cached_launches(launches, given, outputs, kept, bundle.layout)
    return (outputs, apart, None) if tape is None else (outputs, bundle, tape)


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

    In the memory of a bundle it is: the layout is a fact of the call.
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
    return CachedLaunches(tuple(steps), memory, layout, size, GraphCache())


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
