"""What a finished run has to say, in one file."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hamburger import distributed
from hamburger.engine.clock import Clock
from hamburger.environment import Environment
from hamburger.solvers.backend import VARIABLE

# What two equal runs may differ in.
MEASURED = ("images_per_s", "peak_mb", "data_wait", "seconds", "date")


@dataclass(frozen=True)
class Result:
    """`values` is `result.json`; its scores are those of the last step, not of the best one."""

    run: Path
    values: dict[str, Any]


def measured(clock: Clock, device: torch.device) -> dict[str, Any]:
    """What it cost, and on what."""
    return {
        "processes": distributed.world(),
        **asdict(Environment.here(device.type)),
        "backend": os.environ.get(VARIABLE, "auto"),  # which program the hams were told to take
        "images_per_s": None if clock.images_per_s is None else round(clock.images_per_s, 2),
        "peak_mb": round(clock.peak_mb(device), 1),
        "data_wait": round(clock.data_wait, 4),
        "seconds": round(clock.seconds, 2),
    }
