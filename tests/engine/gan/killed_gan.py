"""What the killed process runs; imported once by the server that its restarts are forked from."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric  # noqa: F401  (imported here, before the fork, to save every restart the time)
from small_gan import train_small

torch.set_num_threads(1)


def work(run, settings):
    train_small(run, *settings, resume=True)
