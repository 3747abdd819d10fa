"""What the killed process runs."""

from __future__ import annotations

import torch
from small_gan import train_small

torch.set_num_threads(1)


def work(run, settings):
    train_small(run, *settings, resume=True)
