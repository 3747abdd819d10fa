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


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def multiply_adds(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> int:
    """Of one evaluation, by torch's counter: every matrix product and convolution, nothing element-wise.

    On the meta device: shapes only, so a 16,384 x 16,384 product costs no time, and attention is the two products it
    is made of, whichever kernel would run it.
    """
    with torch.device("meta"):
        module = build().eval()
        x = torch.empty(shape)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(x)
    return counter.get_total_flops() // 2  # the counter takes a multiply-add for two operations


def peak_mib(call: Callable[[], object], resident: list[Tensor], device: str) -> float:
    """Peak memory of one call in MiB, with what is resident before it: parameters, buffers, input."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / MIB
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in resident}
    return (sum(held.values()) + _cpu_peak(call)) / MIB


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
