"""The hash of a network's code: the same each time, and another whenever the network may do something else."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import sys

import pytest
import torch
from torch import nn

from hamburger.generation.metrics.code_digest import NoSource, code_digest
from hamburger.generation.metrics.inception import FidInception

HELPER = "def double(x):\n    return 2 * x\n"
MODULE = """
import torch
from digest_helper import double
SCALE = 1.0

class Base(torch.nn.Module):
    def pooled(self, x):
        return x.mean((2, 3))

class Net(Base):
    def forward(self, x):
        return SCALE * double(self.pooled(x))
"""


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """Of the network in two files, with what these say now."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # times of change are too coarse for what is written at once

    def find(module=MODULE, helper=HELPER, change=lambda module: None):
        for name, text in (("digest_net", module), ("digest_helper", helper)):
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        made = importlib.import_module("digest_net")
        change(made)
        return code_digest(nn.Sequential(made.Net()))

    yield find
    for name in ("digest_net", "digest_helper"):
        sys.modules.pop(name, None)


def test_code_that_changes_has_another_digest(digest):
    first = digest()
    assert digest() == first
    others = [
        digest(MODULE.replace("SCALE = 1.0", "SCALE = 1.009")),
        digest(MODULE.replace("x.mean((2, 3))", "x.mean((2, 3)).relu()")),
        digest(helper=HELPER.replace("2 * x", "2 * x.clamp_max(3)")),
        digest(change=lambda module: setattr(module, "SCALE", 1.009)),
    ]
    assert len({first, *others}) == 5


class Holding(nn.Module):
    def __init__(self, **held):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        for name, value in held.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 1.009),
        ([1, {"a": 2}], [1, {"a": 3}]),
        ({"a", "b"}, {"a", "c"}),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])),
        (functools.partial(torch.clamp, max=1), functools.partial(torch.clamp, max=2)),
        ((lambda factor: lambda x: factor * x)(1), (lambda factor: lambda x: factor * x)(2)),
        (nn.functional.relu, nn.functional.gelu),
        (math.sin, math.cos),
        ([nn.Dropout(0.1)], [nn.Dropout(0.2)]),
    ],
    ids=["number", "nested", "set", "tensor", "partial", "closure", "function", "builtin", "hidden module"],
)
def test_values_that_a_network_holds_count(one, other):
    digest = code_digest(Holding(held=one))
    assert code_digest(Holding(held=copy.deepcopy(one))) == digest  # other weights, too
    assert code_digest(Holding(held=other)) != digest


def test_hooks_and_layers_count_and_weights_do_not():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    digest = code_digest(net)
    nn.init.zeros_(net[0].weight)
    assert code_digest(net.train()) == code_digest(net.eval()) == digest
    others = {code_digest(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())), code_digest(nn.Sequential(net[0]))}
    net[1].register_forward_hook(lambda module, given, out: 2 * out)
    assert len({digest, code_digest(net), *others}) == 4
    assert code_digest(FidInception()) == code_digest(FidInception())


def test_a_graph_has_its_own_code():
    class Net(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return self.factor * x.mean((2, 3))

    one, again, other = (code_digest(torch.fx.symbolic_trace(Net(factor))) for factor in (1, 1, 2))
    assert one == again != other


def test_what_holds_itself_ends():
    net = Holding(held=[])
    net.held.append(net.held)
    net.owner = [net]
    assert code_digest(net) == code_digest(net)


def test_what_has_no_source_is_told():
    named = {"nn": nn, "__name__": "nowhere"}
    exec("class Net(nn.Module):\n    def forward(self, x): return x.mean((2, 3))", named)
    with pytest.raises(NoSource, match="the source of Net is not to be found"):
        code_digest(named["Net"]())
    with pytest.raises(NoSource, match="it holds a Generator"):
        code_digest(Holding(held=torch.Generator()))
