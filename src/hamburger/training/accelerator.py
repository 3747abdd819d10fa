"""Device, precision and processes of a run, on plain torch.

One process on one device needs no `torch.distributed`; several use DistributedDataParallel or FSDP2 over NCCL (GPU) or
gloo (CPU). `ham train --devices N` starts the further processes itself; under `torchrun` they are already running.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hamburger import distributed
from hamburger.devices import call_backend, find_gpu
from hamburger.errors import OptionError, check_choice, check_count
from hamburger.tensors import map_tensors
from hamburger.training import fsdp

STRATEGIES = ("ddp", "fsdp")
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}  # by the recipe's precision
RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}  # environment of a started process


class Accelerator:
    """One of the processes of a run. Building it checks the options; `launch` starts the others."""

    def __init__(
        self, accelerator: str = "auto", *, devices: int = 1, precision: str = "32", strategy: str = "ddp"
    ) -> None:
        gpu = find_gpu()
        check_choice("train", "strategy", strategy, STRATEGIES)
        check_choice("train", "accelerator", accelerator, ("auto", "cpu") if gpu is None else ("auto", "cpu", gpu.type))
        check_count("train", "devices", devices, least=1)
        kind = torch.device("cpu") if gpu is None or accelerator == "cpu" else gpu
        self.launched = os.environ.keys() >= RANK_VARIABLES
        if self.launched:
            started = int(os.environ["LOCAL_WORLD_SIZE"])
            if devices not in (1, started):
                raise OptionError(
                    f"train: torchrun started {started} processes on this machine, got --devices {devices}; leave it "
                    f"out under torchrun"
                )
            devices = started
        if kind.type != "cpu" and devices > (count := torch.accelerator.device_count()):
            raise OptionError(
                f"train: --devices {devices} is more than this machine has ({count} of kind {kind.type}); take fewer "
                f"--devices, or --accelerator cpu"
            )
        if precision == "fp16" and kind.type == "cpu":
            raise OptionError("train: precision fp16 needs a GPU; on a CPU --set precision=bf16 or 32")
        if precision == "fp16" and strategy == "fsdp":
            raise OptionError("train: --strategy fsdp has no loss scaling for fp16; --set precision=bf16 or 32")
        self.devices = devices  # processes on this machine
        self.processes = int(os.environ["WORLD_SIZE"]) if self.launched else devices
        self.sharded = strategy == "fsdp" and self.processes > 1
        self.local_rank = int(os.environ["LOCAL_RANK"]) if self.launched else 0
        self.device = kind if kind.type == "cpu" else torch.device(kind.type, self.local_rank)
        self.dtype = AUTOCAST.get(precision)  # of autocast; None: no autocast
        self.scaler = torch.amp.GradScaler(kind.type, enabled=precision == "fp16")  # of the loss
        self.started: list[subprocess.Popen[bytes]] = []  # the processes that this one has started

    @property
    def on_gpu(self) -> bool:
        return self.device.type != "cpu"

    # -- processes -----------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Join the process group; first start the other processes, unless `torchrun` has."""
        if self.on_gpu:
            call_backend(self.device, "set_device", self.device)
            call_backend(self.device, "reset_peak_memory_stats", self.device)
        if self.processes == 1:
            return
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.devices))
        group: dict[str, Any] = {} if self.launched else self._start_processes()
        backend = dist.get_default_backend_for_device(self.device)  # such as NCCL, or gloo on CPUs
        dist.init_process_group(backend, device_id=self.device if self.on_gpu else None, **group)

    def autotune(self, net: nn.Module, *, fixed_batch_size: bool = True) -> None:
        """Let cuDNN choose algorithms by trial where that pays: tensors of the same size in every step.

        Not with depthwise convolutions: the first step of an EfficientNet in bfloat16 did not end within half a minute.
        """
        if self.on_gpu:
            torch.backends.cudnn.benchmark = fixed_batch_size and not has_depthwise_convolution(net)

    def _start_processes(self) -> dict[str, Any]:
        """Start the calling script again for every further rank, as `torchrun` would; return the rendezvous options."""
        port = _free_port()
        for rank in range(1, self.devices):
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.devices, "LOCAL_WORLD_SIZE": self.devices}
            variables = {name: str(number) for name, number in (*numbers.items(), ("MASTER_PORT", port))}
            environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", **variables}
            self.started.append(subprocess.Popen(_own_command(), env=environment))
        threading.Thread(target=self._watch, daemon=True).start()
        return {"init_method": f"tcp://127.0.0.1:{port}", "rank": 0, "world_size": self.devices}

    def _watch(self) -> None:
        """Where one of the processes fails, stop the others and this one, which would wait for it."""
        while True:
            statuses = [process.poll() for process in self.started]
            if all(status == 0 for status in statuses):
                return
            if any(statuses):
                for process in self.started:
                    process.send_signal(signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(5)

    def kill_processes(self) -> None:
        """Kill the processes that this one started: they would wait for it until a timeout."""
        for process in self.started:
            process.kill()  # does nothing to one that has ended

    def barrier(self) -> None:
        if distributed.world_size() > 1:
            dist.barrier(device_ids=[self.local_rank] if self.on_gpu else None)

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Run the block on local rank 0 of every machine first, then on the others."""
        if distributed.world_size() == 1:
            yield
            return
        group: Any = dist.new_group(backend="gloo", timeout=timedelta(days=365))  # a download may take long
        if self.local_rank > 0:
            dist.barrier(group=group)
        yield
        if self.local_rank == 0:
            dist.barrier(group=group)
        dist.barrier(group=group)
        dist.destroy_process_group(group)

    # -- network and optimizer -----------------------------------------------------------------------------------

    def prepare(self, net: nn.Module) -> AutocastModule:
        """Move the network to the device and wrap it; a compiled network is compiled around its DDP wrapper."""
        net.to(self.device)
        wrapped = net
        if self.sharded:
            fsdp.shard(net, self.device)
        elif distributed.world_size() > 1:
            original: Any = getattr(net, "_orig_mod", net)
            ids = [self.local_rank] if self.on_gpu else None
            stream = call_backend(self.device, "Stream")
            with call_backend(self.device, "stream", stream) or nullcontext():  # for CUDA graphs
                wrapped = nn.parallel.DistributedDataParallel(original, device_ids=ids)
            if original is not net:
                wrapped = torch.compile(wrapped)  # type: ignore[assignment]
        return AutocastModule(wrapped, self)

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, dtype=self.dtype)

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    @contextmanager
    def no_sync(self, model: AutocastModule) -> Iterator[None]:
        """Gradients stay in this process: those of all micro-batches are averaged once, with the last."""
        wrapped: Any = getattr(model.wrapped, "_orig_mod", model.wrapped)
        if self.sharded:
            wrapped.set_requires_gradient_sync(False)
            yield
            wrapped.set_requires_gradient_sync(True)
            return
        with wrapped.no_sync() if distributed.world_size() > 1 else nullcontext():
            yield

    def clip_gradients(self, model: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> None:
        """Scale all gradients down where their joint norm is above `max_norm`."""
        self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights; with the loss scaling of fp16, skip the update where a gradient is not finite."""
        self.scaler.step(optimizer)
        self.scaler.update()


class AutocastModule(nn.Module):
    """A network as the training loop calls it: under autocast, its outputs back in float32.

    Inputs are not rounded: a box corner at pixel 513 would become 512 in bfloat16.
    """

    def __init__(self, wrapped: nn.Module, accelerator: Accelerator) -> None:
        super().__init__()
        self.wrapped, self._accelerator = wrapped, accelerator

    def forward(self, *args: Any, **options: Any) -> Any:
        with self._accelerator.autocast():
            outputs = self.wrapped(*args, **options)
        return outputs if self._accelerator.dtype is None else map_tensors(to_float32, outputs)


def has_depthwise_convolution(net: nn.Module) -> bool:
    convs = (module for module in net.modules() if isinstance(module, nn.Conv2d))
    return any(conv.groups > 1 and conv.groups == conv.in_channels for conv in convs)


def to_float32(output: Tensor) -> Tensor:
    return output.float() if output.is_floating_point() else output


def is_rank_zero() -> bool:
    """Whether this process is the one that writes files; also known before the others are started."""
    return os.environ.get("RANK", "0") == "0"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _own_command() -> list[str]:
    """The command that started this process."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return [sys.executable, str(Path(sys.argv[0]).absolute()), *sys.argv[1:]]
    return [sys.executable, "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]
