"""A cached launcher must make the launch that Triton would make."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from hamburger.kernels import launcher as module
from hamburger.kernels.launcher import launch


class Kernel:
    """Records what is compiled, and the arguments of every launch."""

    arg_names = ("p_x", "n", "M", "num_warps")

    def __init__(self):
        self.compiled, self.started = [], []

    def __getitem__(self, grid):
        def run(*args, **options):
            self.compiled.append((grid, args, options))
            return self

        def again(*args):
            self.started.append((grid, args))

        return again if len(grid) == 3 else run


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(module, "_compiled", {})
    monkeypatch.setattr(module, "CACHES_PROGRAMS", True)
    monkeypatch.setattr(module, "launch_compiled", lambda program, grid, args, stream: program[grid](*args))
    monkeypatch.setattr(module, "current_stream", lambda: 0)


def test_second_launch_does_not_call_the_compiler():
    kernel, x = Kernel(), torch.zeros(8)
    for _ in range(3):
        launch(kernel, (5,), x, 8, M=16, num_warps=4)
    assert len(kernel.compiled) == 1
    assert kernel.started == [((5, 1, 1), (x, 8, 16, 4))] * 2


def test_specialisation_keys_select_another_program():
    kernel, x = Kernel(), torch.zeros(40)
    launch(kernel, (5,), x, 8, M=16, num_warps=4)
    launch(kernel, (5,), x.double(), 8, M=16, num_warps=4)
    launch(kernel, (5,), x[1:], 8, M=16, num_warps=4)  # no longer aligned
    launch(kernel, (5,), x, 16, M=16, num_warps=4)
    launch(kernel, (5,), x, 8, M=32, num_warps=4)
    launch(kernel, (5,), x, 8, M=16, num_warps=8)
    launch(kernel, (5,), x, 8.0, M=16, num_warps=4)  # equal to 8, but a float to a program
    launch(Kernel(), (5,), x, 8, M=16, num_warps=4)
    assert len(kernel.compiled) == 7 and not kernel.started
    launch(kernel, (7,), x[4:], 8, M=16, num_warps=4)  # another place and grid, the same program
    assert kernel.started[0][0] == (7, 1, 1) and kernel.started[0][1][0].data_ptr() == x[4:].data_ptr()


def test_launcher_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_PROGRAMS", 3)
    kernel, x = Kernel(), torch.zeros(8)
    for n in range(10):
        launch(kernel, (5,), x, n, M=16, num_warps=4)
    assert len(module._compiled) <= 3


def test_older_triton_launches_without_the_cache(monkeypatch):
    monkeypatch.setattr(module, "CACHES_PROGRAMS", False)
    kernel, x = Kernel(), torch.zeros(8)
    for _ in range(2):
        launch(kernel, (5,), x, 8, M=16, num_warps=4)
    assert len(kernel.compiled) == 2


def test_older_triton_has_no_launch_hooks(monkeypatch):
    monkeypatch.setattr(module, "CACHES_PROGRAMS", False)
    monkeypatch.delattr(module.triton, "knobs", raising=False)
    assert not module.has_launch_hook()
