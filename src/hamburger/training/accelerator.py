"""How many devices and processes a run has."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from hamburger.errors import OptionError, check_choice, check_count
from hamburger.training.fabric import Fabric

ACCELERATORS = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Accelerator:
    """`devices` processes on each of `nodes` machines."""

    accelerator: str  # cpu or cuda
    devices: int
    nodes: int

    @property
    def processes(self) -> int:
        return self.devices * self.nodes

    @classmethod
    def choose(cls, *, accelerator: str = "auto", devices: int = 1, nodes: int = 1) -> Accelerator:
        """Check the options; under `torchrun`, which has started the processes, take its numbers."""
        check_choice("train", "accelerator", accelerator, ACCELERATORS)
        check_count("train", "devices", devices, least=1)
        check_count("train", "nodes", nodes, least=1)
        if accelerator == "auto":
            accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        if under_torchrun():
            local = int(os.environ["LOCAL_WORLD_SIZE"])
            started = (local, int(os.environ["WORLD_SIZE"]) // local)
            if (devices, nodes) not in ((1, 1), started):
                raise OptionError(
                    f"train: torchrun started {started[0]} processes on {started[1]} nodes, got --devices {devices} "
                    f"--nodes {nodes}; leave both out under torchrun"
                )
            devices, nodes = started
        if accelerator == "cuda" and devices > torch.cuda.device_count():
            raise OptionError(
                f"train: --devices {devices} is more than this machine has ({torch.cuda.device_count()} CUDA devices); "
                f"take fewer --devices, or --accelerator cpu"
            )
        return cls(accelerator, devices, nodes)

    def check_precision(self, precision: str) -> None:
        if precision == "fp16" and self.accelerator == "cpu":
            raise OptionError("train: precision fp16 needs a GPU; on a CPU --set precision=bf16 or 32")

    def fabric(self, precision: str) -> Fabric:
        """A launched Fabric; it starts the other processes, unless `torchrun` has."""
        fabric = Fabric(self.accelerator, self.devices, self.nodes, precision)
        fabric.launch()
        return fabric


def under_torchrun() -> bool:
    return {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK"} <= set(os.environ) and "TORCHELASTIC_RUN_ID" in os.environ


def is_rank_zero() -> bool:
    """Whether this process is the one that writes files; also known before the others are started."""
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"
