"""Processes forked from one that has imported everything: to start one costs no seconds of imports.

A test process has one such server, begun by whoever comes first; what it has imported serves all.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch.multiprocessing as mp


def context():
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["imported"])
    with pytest.MonkeyPatch.context() as patch:
        # the server looks for what it preloads on the path that it inherits, not on ours
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()
    return made


def run(worker, *args):
    """`worker(rank, *args)` in two processes, until both are done."""
    context()
    mp.start_processes(worker, args, nprocs=2, start_method="forkserver")
