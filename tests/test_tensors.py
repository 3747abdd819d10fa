"""Functions over tensors in nested values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tiers import not_on_torch_2_6
from torch import nn

from hamburger.tensors import is_exporting, list_tensors, map_tensors


class Pair(NamedTuple):
    left: object
    right: object


def test_tensors_of_nested_values_are_mapped_and_the_rest_is_kept():
    a, b = torch.ones(2), torch.zeros(3)
    value = {"x": [a, "text"], "y": Pair(b, (a, None)), "z": 3}
    doubled = map_tensors(lambda t: t + 1, value)
    assert isinstance(doubled["y"], Pair) and doubled["x"][1] == "text" and doubled["z"] == 3
    assert [t.tolist() for t in list_tensors(doubled)] == [[2, 2], [1, 1, 1], [2, 2]]
    assert all(actual is expected for actual, expected in zip(list_tensors(value), [a, b, a], strict=True))


@not_on_torch_2_6
def test_only_an_export_is_an_export():
    class Branches(nn.Module):
        def forward(self, x):
            return x + 1 if is_exporting() else x - 1

    x = torch.zeros(2)
    assert Branches()(x)[0] == -1
    assert torch.compile(Branches(), backend="eager", fullgraph=True)(x)[0] == -1
    for strict in (False, True):
        assert torch.export.export(Branches(), (x,), strict=strict).module()(x)[0] == 1
