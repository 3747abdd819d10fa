"""Ranks, silent channels and gradient angles of a network, against what is known of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.analysis.inside import gradients, look_inside, silent
from hamburger.analysis.spectrum import cumulative_energy, effective_rank
from hamburger.errors import InputError, UnknownNameError


def test_effective_rank_of_known_spectra():
    equal = torch.eye(5)[None]
    single = torch.ones(1, 5, 7)
    two = torch.diag(torch.tensor([3.0, 3.0, 0.0, 0.0]))[None]
    for x, rank in ((equal, 5.0), (single, 1.0), (two, 2.0)):
        assert effective_rank(cumulative_energy(x)).item() == pytest.approx(rank, rel=1e-5)


def test_silent_channels_are_counted():
    x = torch.ones(1, 4, 3, 3)
    x[0, 1], x[0, 3] = 0.0, 1e-4
    assert silent(x).tolist() == [0.5]


class Net(nn.Module):
    def __init__(self, ham, **options):
        super().__init__()
        self.head = nn.Module()
        self.head.context = hb.Hamburger(8, ham=ham, rank=2, **options)
        self.stem, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.last(self.head.context(self.stem(x)))


@pytest.mark.parametrize("ham", ["nmf", "vq", "cd"])
def test_every_measure_is_there_and_nothing_is_changed(ham):
    torch.manual_seed(0)
    net = Net(ham).train()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    batch = torch.rand(2, 3, 6, 6), torch.randint(0, 4, (2, 6, 6))
    found = look_inside(net, [batch, batch])
    assert found == look_inside(net, [batch])
    assert {"rank_before", "rank90_after", "silent_before", "cosine_one_step", "norm_truncated2"} <= set(found)
    assert 1 <= found["rank_after"] <= 8
    assert net.training and all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_one_sweep_kept_is_bptt_where_there_is_one_sweep():
    """VQ's start is no function of x, so that with K = 1 the last sweep is all there is."""
    torch.manual_seed(0)
    net = Net("vq", steps=1, temperature=1.0)
    found = gradients(net, torch.rand(1, 3, 6, 6), torch.randint(0, 4, (1, 6, 6)), "head.context.ham")
    assert found["cosine_truncated1"] == pytest.approx(1.0, abs=1e-6)
    assert found["norm_truncated1"] == pytest.approx(1.0, abs=1e-6)
    assert found["cosine_one_step"] < 1


def test_mistakes_are_named():
    with pytest.raises(UnknownNameError, match=r"did you mean 'head\.context'"):
        look_inside(Net("nmf"), [(torch.rand(1, 3, 4, 4), torch.zeros(1, 4, 4).long())], layer="head.contxt")
    with pytest.raises(InputError, match="no image to look at"):
        look_inside(Net("nmf"), [])
