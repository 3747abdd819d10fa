"""Devices and processes of a run, the Fabric that drives them, and autocast."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.plugins.precision import MixedPrecision

from hamburger.errors import OptionError, check_choice, check_count

if TYPE_CHECKING:
    from lightning.fabric import Fabric


ACCELERATORS = ("auto", "cpu", "cuda")
MIXED = {"bf16": "bf16-mixed", "fp16": "16-mixed"}  # by our names


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
        """Under `torchrun` its numbers hold, since it has already started the processes."""
        check_choice("train", "accelerator", accelerator, ACCELERATORS)
        check_count("train", "devices", devices, least=1)
        check_count("train", "nodes", nodes, least=1)
        if accelerator == "auto":
            accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        if torchrun():
            local = int(os.environ["LOCAL_WORLD_SIZE"])
            found = (local, int(os.environ["WORLD_SIZE"]) // local)
            if (devices, nodes) not in ((1, 1), found):
                raise OptionError(
                    f"train: torchrun started {found[0]} processes on {found[1]} nodes, but --devices {devices} "
                    f"--nodes {nodes} was asked for; leave both out under torchrun"
                )
            devices, nodes = found
        if accelerator == "cuda" and devices > torch.cuda.device_count():
            raise OptionError(
                f"train: {devices} CUDA devices were asked for, this machine has {torch.cuda.device_count()}; "
                f"take fewer --devices, or --accelerator cpu"
            )
        return cls(accelerator, devices, nodes)

    def check_precision(self, precision: str) -> None:
        if precision == "fp16" and self.accelerator == "cpu":
            raise OptionError("train: precision fp16 needs a GPU; on a CPU --set precision=bf16 or 32")

    def fabric(self, precision: str) -> Fabric:
        """Started, but with processes of its own only where `torchrun` has not made them."""
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy

        for name in ("lightning.fabric", "lightning.pytorch"):  # what they would say, we say
            logging.getLogger(name).setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="lightning.*")
            fabric = Fabric(
                accelerator=self.accelerator,
                devices=self.devices,
                num_nodes=self.nodes,
                strategy=DDPStrategy() if self.processes > 1 else "auto",
                plugins=[AutocastPrecision(MIXED[precision], self.accelerator)] if precision in MIXED else None,
            )
            fabric.launch()
        return fabric


def torchrun() -> bool:
    return {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK"} <= set(os.environ) and "TORCHELASTIC_RUN_ID" in os.environ


def is_rank_zero() -> bool:
    """Whether this process is the one that writes, also before the others are started."""
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"


# ----------------------------------------------------------------------------------------------------------------------
# Mixed precision by autocast alone.


class AutocastPrecision(MixedPrecision):
    """Fabric would round every input of the network to 16 bits; a box's corner at pixel 513 is 512 in bfloat16."""

    def __init__(self, precision: str, device: str) -> None:
        super().__init__(precision, device)  # type: ignore[arg-type]

    def convert_input(self, data: Any) -> Any:
        return data
