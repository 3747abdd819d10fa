"""Run a Hamburger on a feature map whose rows are in several processes, and compare with one process.

pip install .
python examples/sharded_map.py
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import hamburger as hb

ROWS = (40, 23, 1)  # of the map, in each process


def make_layer():
    torch.manual_seed(0)
    return hb.Hamburger(64, ham="nmf", rank=8, init="fixed").double()  # a random dictionary would differ in the copy


def make_map():
    return torch.randn(2, 64, sum(ROWS), 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def worker(rank, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=len(ROWS))
    mesh = init_device_mesh("cpu", (len(ROWS),))
    layer = hb.shard_positions(make_layer(), mesh)

    rows = make_map().split(ROWS, dim=2)[rank]  # in your program each process has only its own
    out = layer(rows)
    out.square().sum().backward()
    for parameter in layer.parameters():  # each process has a part of the gradient
        dist.all_reduce(parameter.grad, group=mesh.get_group())

    whole = make_layer()
    expected = whole(make_map())
    expected.square().sum().backward()
    value = (out - expected.split(ROWS, dim=2)[rank]).abs().max()
    pairs = zip(layer.parameters(), whole.parameters(), strict=True)
    gradient = max(((p.grad - q.grad).norm() / q.grad.norm()).item() for p, q in pairs)
    print(f"process {rank} with {ROWS[rank]:2} rows: output off by {value:.1e}, gradient by {gradient:.1e} of its norm")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (f"{folder}/rendezvous",), nprocs=len(ROWS))
