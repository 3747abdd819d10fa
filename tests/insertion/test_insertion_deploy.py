"""Networks with contexts can be compiled, exported, trained on several processes and pickled."""

from __future__ import annotations

import os
import subprocess
import sys

import forkserver
import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_networks import NETWORKS, Plain
from tiers import full_except
from tolerances import assert_close
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hamburger as hb

PLACES = {"stem": "efficient", "blocks.1": ("nmf", {"rank": 4, "init": "fixed", "norm": "none"})}


def build():
    torch.manual_seed(0)
    return hb.insert_context(Plain(), PLACES, gate="one")


@pytest.mark.parametrize("name", full_except(("plain",), ("plain", "torchvision_densenet", "timm_regnet")))
def test_inserted_contexts_compile_and_export(name):
    net, places = NETWORKS[name]()
    hb.insert_context(net.eval(), places, gate="one")
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        output = net(x)
        torch._dynamo.reset()
        assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), output, slack=10)
        program = torch.export.export(net, (x,), strict=False)
        assert_close(program.module()(x), output, slack=10)
    assert set(program.state_dict) == set(net.state_dict())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.trace:FutureWarning")
@pytest.mark.parametrize("context", ["nmf", "efficient", "cd", "vq", ("psp", {"grid": (6, 6)})], ids=str)
def test_inserted_contexts_trace_without_gradients(context):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).eval()
    x, other = torch.rand(1, 3, 8, 8), torch.rand(2, 3, 8, 8)
    hb.insert_context(net, {"0": context}, gate="one", example=x)
    with torch.no_grad():
        traced = torch.jit.trace(net, x)  # which compares it with a second trace
        assert_close(traced(other), net(other), slack=10)


def test_inserted_contexts_compile_in_training():
    torch._dynamo.reset()
    slow, fast = build(), build()
    slow.drop.p = fast.drop.p = 0.0
    x = torch.rand(2, 3, 16, 16)
    slow(x).square().sum().backward()
    torch.compile(fast, fullgraph=True, backend="aot_eager")(x).square().sum().backward()
    for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
        assert_close(a.grad, b.grad, slack=100)


@pytest.mark.parametrize("name", ["0", "_orig_mod.0"])
def test_contexts_can_be_inserted_into_a_compiled_network(name):
    net, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.rand(2, 3, 16, 16)
    compiled = torch.compile(net, backend="eager")
    with torch.no_grad():
        before = compiled(x)
        hb.insert_context(compiled if "." in name else net, {name: nn.Tanh()}, gate=None, example=x)
        assert not torch.equal(net(x), before)
        assert torch.equal(compiled(x), net(x))
        hb.remove_contexts(compiled)
        assert torch.equal(compiled(x), before)


@pytest.mark.full
def test_onnx(tmp_path):
    pytest.importorskip("onnxscript", reason="needs the extra [export]")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [export]")
    net, x = build().eval(), torch.rand(1, 3, 16, 16)
    torch.onnx.export(net, (x,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(output, net(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def step(net, x, share):
    net.train()
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.Dropout)):
            module.eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (net(x).square().mean(1).sum() * share).backward()
        optimizer.step()


def worker(rank, x, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    net = build()
    wrapped = DistributedDataParallel(net)
    step(wrapped, x[rank : rank + 1], share=2.0)
    with pytest.raises(hb.InputError, match=r"already wrapped in DistributedDataParallel.*bare model, then wrap it"):
        hb.insert_context(wrapped, {"module.blocks.0": "efficient"})
    with pytest.raises(
        hb.InputError, match=r"remove_contexts: .* averages the gradients of the parameters it was built with.*; call"
    ):
        hb.remove_contexts(wrapped)
    torch.save(net.state_dict(), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_match_a_single_process(tmp_path):
    x = torch.rand(2, 3, 16, 16)
    forkserver.run(worker, x, str(tmp_path))
    net = build()
    step(net, x, share=1.0)
    for rank in range(2):
        for name, tensor in torch.load(tmp_path / f"{rank}.pt", weights_only=True).items():
            if tensor.is_floating_point():
                assert_close(tensor, net.state_dict()[name], slack=10)


def test_pickled_network_loads_in_another_process(tmp_path):
    """Hooks are numbered by process: a hook added after loading must not replace ours."""
    net, x = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU()), torch.rand(1, 3, 8, 8)
    hb.insert_context(net, {"0": "efficient"}, gate="one")
    torch.save((net, x, net(x).detach()), tmp_path / "net.pt")
    code = (
        "import sys, torch\n"
        "net, x, answer = torch.load(sys.argv[1], weights_only=False)\n"
        "[net[0].register_forward_hook(lambda *_: None) for _ in range(200)]\n"
        "assert torch.equal(net(x), answer)\n"
        "import hamburger as hb\n"
        "assert not torch.equal(hb.remove_contexts(net)(x), answer)\n"
        "assert len(net[0]._forward_hooks) == 200\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.pt")], check=True)


def test_context_follows_device_and_dtype():
    net = build().to("meta")
    assert {p.device.type for p in net.parameters()} == {"meta"}
    assert {p.dtype for p in build().half().parameters()} == {torch.float16}
