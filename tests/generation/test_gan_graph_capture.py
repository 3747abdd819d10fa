"""Networks copy nothing from the CPU in a step, so that a CUDA graph can capture it.

The meta device stands in for the GPU: tensors that an operation takes from the CPU are visible in its arguments.
"""

from __future__ import annotations

import pytest
import torch
from tiers import TORCH
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hamburger.generation.model import create_gan
from hamburger_lab.bench.gan import CONTENDERS


class CpuCopies(TorchDispatchMode):
    """Records operations that mix both devices or create a tensor from a list; scalars are launch arguments."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        both = {tensor.device.type for tensor in tensors if tensor.dim()} == {"cpu", "meta"}
        if both or (func is torch.ops.aten.lift_fresh.default and tensors[0].dim()):
            self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


def find_cpu_copies(context, options):
    G, D = create_gan(
        "hamgan", resolution=32, num_classes=4, width=16, latent=16, context=context, context_options=options,
        context_at=8, generator_multipliers=[4, 4, 4, 1], discriminator_multipliers=[1, 4, 4, 4], discriminator_downs=3,
    )  # fmt: skip
    G, D = G.to("meta"), D.to("meta")
    z, y = torch.randn(2, 16, device="meta"), torch.zeros(2, dtype=torch.long, device="meta")
    with CpuCopies() as copies:
        D(G(z, y), y).sum().backward()
    return copies.operations


@pytest.mark.parametrize("contender", CONTENDERS)
def test_a_step_copies_nothing_from_the_cpu(contender):
    assert find_cpu_copies(*CONTENDERS[contender]) == []


@pytest.mark.parametrize("chosen", [(0, 2), [0, 2], torch.tensor([0, 2])], ids=["tuple", "list", "tensor"])
@pytest.mark.skipif(TORCH < (2, 15), reason="dispatch modes of older versions (seen in 2.6 and 2.11) see less")
def test_indices_on_the_cpu_are_detected(chosen):
    x = torch.zeros(2, 8, 3, device="meta")
    with CpuCopies() as copies:
        x[:, chosen]
    assert copies.operations
