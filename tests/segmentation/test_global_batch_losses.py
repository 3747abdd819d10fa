"""Losses of two processes match a single process on the global batch."""

from __future__ import annotations

import forkserver
import pytest
import torch
import torch.distributed as dist
from tolerances import assert_close

from hamburger.segmentation.losses import cross_entropy
from hamburger_lab.heads.losses import find_borders, focal_loss, presence_loss

LOSSES = {
    "cross_entropy": (cross_entropy, (5, 9, 9)),
    "presence": (presence_loss, (5,)),
    "focal": (lambda logits, target: focal_loss(logits, find_borders(target)), (1, 9, 9)),
}


def batch(name):
    torch.manual_seed(0)
    logits, target = torch.randn(3, *LOSSES[name][1]), torch.randint(0, 5, (3, 9, 9))
    target[0, 2:] = 255  # unevenly labelled, and one image not at all
    target[1] = 255
    return logits.requires_grad_(), target


def gradient(name, share):
    """The loss of some samples, and its gradient by all of them."""
    logits, target = batch(name)
    loss = LOSSES[name][0](logits[share], target[share])
    loss.backward()
    return loss.detach(), logits.grad


def worker(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    share = slice(0, 2) if rank == 0 else slice(2, 3)
    torch.save({name: gradient(name, share) for name in LOSSES}, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    forkserver.run(worker, str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("name", LOSSES)
def test_the_mean_over_processes_is_the_loss_of_the_global_batch(name, parts):
    (loss_a, grad_a), (loss_b, grad_b) = (part[name] for part in parts)
    loss, grad = gradient(name, slice(None))
    assert_close((loss_a + loss_b) / 2, loss)
    assert_close((grad_a + grad_b) / 2, grad)  # what DDP does
    assert loss_a != loss_b and grad.any()
