"""The training process that `test_kill.py` kills."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from small_run import small

from hamburger.tasks import train

torch.set_num_threads(1)


def work(run, settings, slow):
    if slow:
        drag()
    train(small(*settings), run, accelerator="cpu", resume=(run / "recipe.json").exists())


def drag():
    """Leave files half-written for a while before each fsync, and delay each rename."""
    fsync, replace = os.fsync, os.replace

    def half(handle):
        path = Path(f"/proc/self/fd/{handle}")
        content = path.read_bytes() if path.is_file() else b""
        if content and path.readlink().suffix != ".jsonl":
            os.ftruncate(handle, len(content) // 2)
            time.sleep(0.05)
            os.pwrite(handle, content[len(content) // 2 :], len(content) // 2)
        fsync(handle)

    def late(*args, **options):
        time.sleep(0.02)
        replace(*args, **options)
        time.sleep(0.02)

    os.fsync, os.replace = half, late
