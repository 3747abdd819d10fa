"""Two gloo processes under DDP match a single process on the global batch."""

from __future__ import annotations

import os

import forkserver
import pytest
import torch
import torch.distributed as dist
from tolerances import assert_close
from torch.nn.parallel import DistributedDataParallel

import hamburger as hb

# Dictionaries that do not depend on how a process numbers its draws. SyncBatchNorm has no CPU version, so the norm is
# one whose statistics do not cross samples, or batch norm frozen as in fine-tuning.
CASES = {
    "fixed-group": {"init": "fixed", "norm": "group"},
    "online-group": {"init": "online", "norm": "group"},
    "online-vq": {"init": "online", "norm": "group", "ham": "vq", "temperature": 0.5},
    "learned-frozen": {"init": "learned", "norm": "batch"},
}


def build(case):
    torch.manual_seed(0)
    return hb.Hamburger(32, rank=4, version="paper", **CASES[case])


def train(layer, batches, share):
    """Two SGD steps on a loss that sums over samples, so that shards add up; what is left in the state dict."""
    layer.train()
    for module in layer.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.eval()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    outs = []
    for z in batches:
        optimizer.zero_grad()
        out = layer(z)
        (out.square().mean((1, 2)).sum() * share).backward()
        optimizer.step()
        outs.append(out.detach())
    return outs


def worker(rank, batches, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    # uneven shards: two samples here, one there. DDP averages gradients over processes, hence the factor 2.
    mine = [z[:2] if rank == 0 else z[2:] for z in batches]
    for case in CASES:
        layer = build(case)
        outs = train(DistributedDataParallel(layer), mine, share=2.0)
        torch.save({"state": layer.state_dict(), "outs": outs}, f"{folder}/{case}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The batches, and the folder with the results of two processes, whose start takes longest."""
    folder = tmp_path_factory.mktemp("processes")
    batches = list(torch.randn(2, 3, 32, 40, generator=torch.Generator().manual_seed(0)))
    forkserver.run(worker, batches, str(folder))
    return batches, folder


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_match_a_single_process_on_the_global_batch(case, trained):
    batches, folder = trained
    first, second = (torch.load(folder / f"{case}-{rank}.pt", weights_only=True) for rank in (0, 1))
    alone = build(case)
    outs = train(alone, batches, share=1.0)
    for whole, a, b in zip(outs, first["outs"], second["outs"], strict=True):
        assert_close(torch.cat([a, b]), whole)
    for key, value in alone.state_dict().items():
        assert_close(first["state"][key].float(), value.float())
        assert torch.equal(first["state"][key], second["state"][key]), key
    assert not torch.equal(alone.state_dict()["lower.weight"], build(case).state_dict()["lower.weight"])
    if case.startswith("online"):
        moved = alone.state_dict()["ham.dictionary.bases"] - build(case).state_dict()["ham.dictionary.bases"]
        assert moved.norm() > 0.1
