"""Counts and peaks: parameters, multiply-adds, and the memory of one call, each apart from the clock."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

MIB = 2**20


def count_params_and_macs(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[int, int]:
    """Parameters, and multiply-adds of one evaluation by torch's counter: products and convolutions, nothing else.

    On the meta device: shapes only, so a 16,384 x 16,384 product costs no time, and attention is the two products it
    is made of, whichever kernel would run it.
    """
    with torch.device("meta"):
        module = build().eval()
        x = torch.empty(shape)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(x)
    # the counter takes a multiply-add for two operations
    return sum(p.numel() for p in module.parameters()), counter.get_total_flops() // 2


def peak_mib(call: Callable[[], object], resident: list[Tensor], device: str) -> float:
    """What is resident before the call (parameters, buffers, input) and what it allocates at its peak, in MiB.

    Not counted: the workspaces of matrix libraries, which the first call allocates once for the whole process.
    """
    gc.collect()
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in resident}
    return (sum(held.values()) + (_cuda_peak if device == "cuda" else _cpu_peak)(call)) / MIB


def _cuda_peak(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The profiler's library announces itself on the process's stderr, past Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _cpu_peak(call: Callable[[], object]) -> int:
    """Largest sum of torch's CPU allocations during the call, in bytes, from the profiler's record of them."""
    from torch.profiler import ProfilerActivity, profile

    with _quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        kept = call()
        del kept
    now = peak = 0
    events = record.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
