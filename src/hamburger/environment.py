"""Hardware, versions and commit of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from hamburger.devices import call_backend


def describe_environment(device: str) -> dict[str, Any]:
    """Return the fields of a result row that say where and with what it was measured; `device` is cpu or cuda."""
    return {
        "device": device,
        "hardware": hardware_name(device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware_name(device: str) -> str:
    return call_backend(torch.device(device), "get_device_name") or cpu_name()


def cpu_name() -> str:
    """Such as `AMD EPYC (2 cores)`."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name} ({os.cpu_count()} cores)"


def commit() -> str | None:
    """The commit of the source tree, `-dirty` where tracked files differ from it; None where there is no such tree.

    HAM_COMMIT names it where only a copy of the files went, such as onto a machine for measuring.
    """
    if "HAM_COMMIT" in os.environ:
        return os.environ["HAM_COMMIT"]
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # an installed package may lie inside somebody else's repository
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        described = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
