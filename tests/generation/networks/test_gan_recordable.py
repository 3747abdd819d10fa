"""A step that is recorded as a CUDA graph may not send anything from the host: every tensor of it is on the device.

The meta device stands for the card here: what a call brings from the host is still on the CPU, and is seen.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hamburger.generation.networks.create import create_gan
from hamburger_lab.bench.gan import CONTENDERS


class FromTheHost(TorchDispatchMode):
    """Names of operations that take tensors of both devices, or make one of a list of numbers; single numbers travel in
    a launch's own arguments.
    """

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        both = {tensor.device.type for tensor in tensors if tensor.dim()} == {"cpu", "meta"}
        if both or (func is torch.ops.aten.lift_fresh.default and tensors[0].dim()):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def moves(context, options):
    G, D = create_gan(
        "hamgan", resolution=32, num_classes=4, width=16, latent=16, context=context, context_options=options,
        context_at=8, generator_multipliers=[4, 4, 4, 1], discriminator_multipliers=[1, 4, 4, 4], discriminator_downs=3,
    )  # fmt: skip
    G, D = G.to("meta"), D.to("meta")
    z, y = torch.randn(2, 16, device="meta"), torch.zeros(2, dtype=torch.long, device="meta")
    with FromTheHost() as found:
        D(G(z, y), y).sum().backward()
    return found.seen


@pytest.mark.parametrize("contender", CONTENDERS)
def test_nothing_is_sent_from_the_host(contender):
    assert moves(*CONTENDERS[contender]) == []


@pytest.mark.parametrize("chosen", [(0, 2), [0, 2], torch.tensor([0, 2])], ids=["tuple", "list", "tensor"])
def test_indices_of_the_host_are_seen(chosen):
    x = torch.zeros(2, 8, 3, device="meta")
    with FromTheHost() as found:
        x[:, chosen]
    assert found.seen
