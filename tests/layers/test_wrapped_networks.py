"""Networks with a Hamburger train under DDP and FSDP2 as in a single process."""

from __future__ import annotations

from datetime import timedelta

import forkserver
import pytest
import torch
import torch.distributed as dist
from tiers import GLOO_AVERAGES, not_on_torch_2_6
from tolerances import assert_close
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import hamburger as hb
from hamburger.layers.norm import convert_sync

CASES = {
    "nmf": {"ham": "nmf"},
    "vq-learned": {"ham": "vq", "temperature": 0.5, "init": "learned"},
    "cd-online": {"ham": "cd", "temperature": 0.5, "init": "online"},
    "cheese": {"version": "v2", "heads": 2},
}
WRAPPERS = ("ddp", "fsdp") if GLOO_AVERAGES else ("ddp",)
STEPS = 3


def build(case):
    torch.manual_seed(0)
    layer = hb.Hamburger(16, rank=4, **CASES[case])
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), layer, nn.Conv2d(16, 5, 1)).double()


def wrap(net, wrapper, mesh):
    net = convert_sync(net)
    if wrapper == "ddp":
        return DistributedDataParallel(net)
    fully_shard(net[1], mesh=mesh)  # the Hamburger's weights are gathered when it runs, the others' with the network's
    return fully_shard(net, mesh=mesh)


def train(net, share):
    """A few steps on this process's images; both wrappers average the gradients. Return the losses."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)  # Adam would hide a gradient summed twice
    torch.manual_seed(2)
    losses = []
    for _ in range(STEPS):
        images = torch.randn(4, 3, 7, 6, generator=generator, dtype=torch.float64)[share]
        labels = torch.randint(5, (4, 7, 6), generator=generator)[share]
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def worker(rank, folder):
    rendezvous, patience = f"file://{folder}/rendezvous", timedelta(minutes=5)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2, timeout=patience)
    mesh = init_device_mesh("cpu", (2,))
    results = {}
    for case in CASES:
        for wrapper in WRAPPERS:
            net = wrap(build(case), wrapper, mesh)
            losses = train(net, slice(2 * rank, 2 * rank + 2))
            sharded = [name for name, p in net.named_parameters() if isinstance(p, DTensor)]
            state = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
            results[case, wrapper] = {"losses": losses, "state": state, "sharded": sharded}
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    forkserver.run(worker, str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("case", CASES)
def test_wrapped_network_trains_as_in_a_single_process(case, wrapper, trained):
    first, second = (results[case, wrapper] for results in trained)
    alone = build(case)
    assert_close((first["losses"] + second["losses"]) / 2, train(alone, slice(0, 4)))
    assert first["state"].keys() == alone.state_dict().keys()
    assert not torch.equal(first["state"]["1.lower.weight"], build(case).state_dict()["1.lower.weight"])
    for name, expected in alone.state_dict().items():
        assert_close(first["state"][name].double(), expected.double())
    names = [name for name, _ in alone.named_parameters()]
    assert first["sharded"] == (names if wrapper == "fsdp" else [])


@not_on_torch_2_6
def test_fully_shard_leaves_scalars_to_the_user():
    """torch shards no scalar, so those of v2+ are passed as ignored parameters."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        with pytest.raises(ValueError, match="scalar"):
            fully_shard(hb.Hamburger(16, rank=4, version="v2+"), mesh=mesh)
        layer = hb.Hamburger(16, rank=4, version="v2+")
        scalars = {p for p in layer.parameters() if p.dim() == 0}
        fully_shard(layer, mesh=mesh, ignored_params=scalars)
        assert {p for p in layer.parameters() if not isinstance(p, DTensor)} == scalars and len(scalars) == 2
        layer(torch.randn(2, 16, 3, 3)).sum().backward()
    finally:
        dist.destroy_process_group()
