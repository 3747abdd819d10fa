"""Nothing but kernels assumes CUDA: other GPUs take the plain path, and do without what they lack."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hamburger as hb
from hamburger import devices
from hamburger.devices import pick_device
from hamburger.errors import OptionError
from hamburger.training.accelerator import Accelerator

SOURCE = Path(hb.__file__).parent
# Why these files may name CUDA
NAMED = {
    "devices.py": "asks each kind of device",
    "cli/output.py": "help",
    "tasks/__init__.py": "names for editors",
    "generation/gan_steps.py": "CUDA graphs, which a recipe asks for",
    "generation/train.py": "refuses them elsewhere",
    "layers/norm.py": "torch's batch norm over processes has its own version for CUDA",
}


def names_cuda(path):
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("cuda", "is_cuda"):
            return True
        text = node.value if isinstance(node, ast.Constant) and id(node) not in documentation else None
        if isinstance(text, str) and "cuda" in text:
            return True
    return False


def test_files_that_name_cuda_have_a_reason():
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if names_cuda(path)}
    assert {name for name in files if not name.startswith("kernels/")} == set(NAMED)


# a tensor on meta has no values: what asks for one, or for CUDA, raises
META = """
import sys, torch, hamburger as hb
x = torch.empty(2, 64, 8, 8, device="meta", requires_grad=True)
for name in hb.list_contexts():
    y = hb.create_context(name, channels=64).to("meta")(x)
    assert y.shape == x.shape and y.device.type == "meta", name
    y.sum().backward()
for ham in hb.hams:
    for grad in ("one-step", "truncated:1", "bptt"):
        out = hb.decompose(x.flatten(2), ham, rank=4, grad=grad)
        assert out.reconstruction.device.type == "meta"
kernels = {name for name in sys.modules if name.startswith("hamburger.kernels.")}
assert kernels == {"hamburger.kernels.dispatch", "hamburger.kernels.tiling"}, kernels
"""


def test_every_context_and_ham_runs_on_a_device_without_values_cuda_or_triton():
    ended = subprocess.run([sys.executable, "-c", META], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_auto_takes_the_gpu_of_any_maker(monkeypatch):
    assert devices.find_gpu() is None or devices.pick_device() == devices.find_gpu()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert devices.pick_device() == torch.device("xpu")
    assert Accelerator("auto", devices=2).device == Accelerator("xpu").device == torch.device("xpu", 0)
    assert Accelerator("cpu").device == torch.device("cpu")
    with pytest.raises(OptionError, match="--devices 3 is more than this machine has \\(2 of kind xpu\\)"):
        Accelerator("xpu", devices=3)
    with pytest.raises(OptionError, match="no accelerator 'mps'; known: auto, cpu, xpu"):
        Accelerator("mps")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(OptionError, match="no accelerator 'cuda'; did you mean 'cpu'"):
        Accelerator("cuda")
    with pytest.raises(OptionError, match=r"'mps' is not available .*; use auto or cpu"):
        devices.pick_device("mps")


class FakeBackend:
    """What torch.mps has: a random state without a number of the device, and no memory statistics."""

    def __init__(self):
        self.state, self.waits = torch.tensor([7]), 0

    def get_rng_state(self):
        return self.state.clone()

    def set_rng_state(self, state):
        self.state = state

    def synchronize(self):
        self.waits += 1


def test_a_device_without_values_is_refused():
    with pytest.raises(OptionError, match="device: 'meta' is not available"):
        pick_device("meta")


def test_a_device_without_memory_statistics_has_none(monkeypatch):
    backend, device = FakeBackend(), torch.device("mps")
    monkeypatch.setattr(torch, "get_device_module", lambda device: backend)
    assert devices.peak_memory(device) is None and devices.free_memory(device) is None
    devices.synchronize(device)
    assert backend.waits == 1
    before = torch.get_rng_state()
    with devices.keep_random_state([device, torch.device("cpu")]):
        backend.state += 1
        torch.rand(3)
    assert backend.state.item() == 7 and torch.equal(torch.get_rng_state(), before)
