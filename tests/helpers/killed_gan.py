"""The GAN training process that `test_train_gan.py` kills."""

from __future__ import annotations

import torch
from small_gan import train_small

torch.set_num_threads(1)


def work(run, settings):
    train_small(run, *settings, resume=(run / "recipe.json").exists())
