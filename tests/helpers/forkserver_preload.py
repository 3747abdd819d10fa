"""What the server of `forkserver.py` imports before any process is forked from it."""

from __future__ import annotations

import torch
import torch.distributed
import torch.nn.parallel

import hamburger
import hamburger.generation.train
import hamburger.segmentation.model
import hamburger.tasks
import hamburger.training.accelerator  # noqa: F401

torch.set_num_threads(1)
