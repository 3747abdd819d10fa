"""Test processes forked from a server that has imported torch and hamburger, so that starting one is quick.

Each pytest process has one server, started by the first test that needs it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
from pathlib import Path

import pytest
import torch.multiprocessing as mp


def context(*preload):
    """The multiprocessing context of the server, which is running. The first call names further modules to import."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["forkserver_preload", *preload])
    with pytest.MonkeyPatch.context() as patch:
        # the server finds its preloads on the PYTHONPATH it inherits, not on this process's sys.path
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        multiprocessing.forkserver.ensure_running()
    return made


def run(worker, *args, processes=2):
    """Run `worker(rank, *args)` in several processes and wait for all."""
    context()
    mp.start_processes(worker, args, nprocs=processes, start_method="forkserver")
