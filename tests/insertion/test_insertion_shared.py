"""A module that is called several times in one pass: one context runs after each of its calls."""

from __future__ import annotations

import copy

import pytest
import torch
from tolerances import assert_close
from torch import nn

import hamburger as hb
from hamburger.insertion import InsertedContext


class Siamese(nn.Module):
    """Two images through the same layers; the second may have another size."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))

    def forward(self, a, b):
        return self.encoder(a).mean((2, 3)) - self.encoder(b).amax((2, 3))


class Tied(nn.Module):
    """One block under two names, and gone through three times."""

    def __init__(self):
        super().__init__()
        block = nn.Conv2d(8, 8, 3, padding=1)
        self.stem, self.blocks = nn.Conv2d(3, 8, 1), nn.ModuleList([block, block])

    def forward(self, x):
        x = self.stem(x)
        for block in (*self.blocks, self.blocks[0]):
            x = torch.tanh(block(x))
        return x


class Stage(nn.Module):
    """Runs all its children, including the inserted context, without a hook."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        for child in self.children():
            x = child(x)
        return x


class Looped(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage = Stage()

    def forward(self, x):
        return self.stage(self.stage(x))


def random_images(other=(20, 12)):
    return torch.rand(2, 3, 16, 16), torch.rand(2, 3, *other)


CASES = {
    "siamese": (Siamese, "encoder", random_images(), 2),
    "tied": (Tied, "blocks.1", random_images()[:1], 3),
    "looped": (Looped, "stage", random_images()[:1], 2),
}


@pytest.mark.parametrize("context", ["efficient", ("nmf", {"rank": 2, "init": "fixed"})], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_shared_context_inserts_trains_and_removes(name, context):
    build, place, x, calls = CASES[name]
    net = build().eval()
    before, keys = net(*x), list(net.state_dict())
    hb.insert_context(net, {place: context}, example=x)
    assert torch.equal(net(*x), before), "the zero gate"

    (inserted,) = (module for module in net.modules() if isinstance(module, InsertedContext))
    nn.init.ones_(inserted.gate)
    seen = []
    handle = inserted.register_forward_hook(lambda module, args, output: seen.append(output))
    y = net(*x)
    handle.remove()
    assert len(seen) == calls and not torch.equal(y, before)
    y.square().sum().backward()
    assert inserted.gate.grad.abs() > 0

    other = hb.insert_context(build().eval(), {place: context}, example=x)
    other.load_state_dict(net.state_dict(), strict=True)
    for twin in (other, copy.deepcopy(net)):
        assert torch.equal(twin(*x), y)
    with torch.no_grad():
        assert_close(torch.export.export(net, x, strict=False).module()(*x), y, slack=10)
    assert hb.remove_contexts(net, [place]) is net
    assert torch.equal(net(*x), before) and list(net.state_dict()) == keys
    assert not any(module._forward_hooks for module in net.modules())


def test_contexts_of_a_module_with_two_names_are_removed_once():
    net = hb.insert_context(Tied(), {"blocks.1": "efficient"})
    hb.remove_contexts(net)
    assert not any(isinstance(module, InsertedContext) for module in net.modules())


def test_shared_module_is_checked_for_every_shape():
    """A context for maps of one size raises an error that names the submodule."""
    fixed = nn.LayerNorm((8, 16, 16))
    with pytest.raises(hb.ShapeError, match=r"LayerNorm cannot take the features \(2, 8, 20, 12\) of 'encoder'"):
        hb.insert_context(Siamese(), {"encoder": fixed}, example=random_images())
