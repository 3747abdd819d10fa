"""Parameters, multiply-adds and peak memory of a call, measured apart from its time."""

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
    """Return parameters and multiply-adds of one evaluation; torch's counter counts products and convolutions.

    It runs on the meta device, which computes shapes only. Attention counts as its two products, whichever kernel
    would run it.
    """
    with torch.device("meta"):
        module = build().eval()
        x = torch.empty(shape)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(x)
    # the counter counts a multiply-add as two operations
    return sum(p.numel() for p in module.parameters()), counter.get_total_flops() // 2


def peak_mib(call: Callable[[], object], resident: list[Tensor], device: str) -> float:
    """Return the MiB of the `resident` tensors (parameters, buffers, input) plus the peak allocation of the call.

    Not counted: workspaces of matrix libraries, which the first call allocates once per process.
    """
    gc.collect()
    resident_bytes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in resident}
    return (sum(resident_bytes.values()) + (_cuda_peak if device == "cuda" else _cpu_peak)(call)) / MIB


def _cuda_peak(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Silence the process's stderr: the profiler's C++ library writes to it."""
    sys.stderr.flush()
    original = os.dup(2)
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


def _cpu_peak(call: Callable[[], object]) -> int:
    """Return the largest sum of torch's CPU allocations during the call in bytes, from the profiler's records."""
    from torch.profiler import ProfilerActivity, profile

    with _quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        result = call()
        del result
    now = peak = 0
    events = record.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
