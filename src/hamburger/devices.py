"""GPUs of any maker, and the CPU: what code outside `kernels/` asks of a device.

NVIDIA and AMD GPUs are "cuda" to torch, Apple's "mps", Intel's "xpu". What a device does not offer, such as the size of
its free memory, is None or does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hamburger.errors import OptionError

PINNED = ("cuda", "xpu")  # copies from pinned memory to these do not wait


def find_gpu() -> torch.device | None:
    """Return the kind of GPU that torch can use here; None without one."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def pick_device(name: str = "auto") -> torch.device:
    """Return the named device; `auto` is the GPU if there is one, else the CPU."""
    gpu = find_gpu()
    if name == "auto":
        return gpu or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device).tolist()  # "meta" holds no numbers
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        names = "auto or cpu" if gpu is None else f"auto, cpu or {gpu.type}"
        raise OptionError(f"device: {name!r} is not available ({why}); use {names}") from None
    return device


def call_backend(device: torch.device, function: str, *args: Any) -> Any:
    """Return `torch.<backend>.<function>(*args)`, such as torch.cuda.set_device(device); None where it has none."""
    if device.type in ("cpu", "meta"):
        return None
    known = getattr(torch.get_device_module(device), function, None)
    return known(*args) if known else None


def synchronize(device: torch.device) -> None:
    """Wait for the work of the device."""
    call_backend(device, "synchronize")


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that tensors have taken on the device."""
    return call_backend(device, "max_memory_allocated", device)


def free_memory(device: torch.device) -> int | None:
    """Return how many bytes of the device are free."""
    free = call_backend(device, "mem_get_info", device)
    return free and free[0]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device; where it can, a copy to a GPU does not wait."""
    if device.type in PINNED and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def to_double(x: Tensor) -> Tensor:
    """Return the tensor in float64, on the CPU where its device has none."""
    if x.device.type == "mps" or (x.device.type == "xpu" and not torch.xpu.get_device_properties(x.device).has_fp64):
        x = x.cpu()
    return x.double()


# -- random states -----------------------------------------------------------------------------------------------------


def get_random_state(device: torch.device) -> Tensor | None:
    """Return the state of the device's random generator; None for the CPU."""
    return call_backend(device, "get_rng_state", *_number(device))


def set_random_state(device: torch.device, state: Tensor) -> None:
    call_backend(device, "set_rng_state", state, *_number(device))


def _number(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is only one


@contextmanager
def keep_random_state(devices: Iterable[torch.device]) -> Iterator[None]:
    """Restore the random states of the CPU and of these devices after the block."""
    on_cpu, states = torch.get_rng_state(), [(each, get_random_state(each)) for each in devices]
    try:
        yield
    finally:
        torch.set_rng_state(on_cpu)
        for device, state in states:
            if state is not None:
                set_random_state(device, state)
