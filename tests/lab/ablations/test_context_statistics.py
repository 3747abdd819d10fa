"""Ranks, silent channels and gradient angles of a network, against known values."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import InputError, UnknownNameError
from hamburger.inspect.activations import attention_maps, record_activations
from hamburger.inspect.solves import prepare_solve
from hamburger_lab.ablations import context_statistics
from hamburger_lab.ablations.context_statistics import COUNTS, compare_gradients, measure_context, silent_share


def test_silent_channels_are_counted():
    x = torch.ones(1, 4, 3, 3)
    x[0, 1], x[0, 3] = 0.0, 1e-4
    assert silent_share(x).tolist() == [0.5]


class Net(nn.Module):
    def __init__(self, ham, **options):
        super().__init__()
        self.head = nn.Module()
        self.head.context = hb.Hamburger(8, ham=ham, rank=2, **options)
        self.stem, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.last(self.head.context(self.stem(x)))


@pytest.mark.parametrize("ham", ["nmf", "vq", "cd"])
def test_every_statistic_is_present_and_the_network_unchanged(ham):
    torch.manual_seed(0)
    net = Net(ham).train()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    batch = torch.rand(2, 3, 6, 6), torch.randint(0, 4, (2, 6, 6))
    statistics = measure_context(net, [batch, batch])
    assert statistics == measure_context(net, [batch])
    assert {"rank_before", "rank90_after", "silent_before", "cosine_one_step", "norm_truncated2"} <= set(statistics)
    assert 1 <= statistics["rank_after"] <= 8
    assert net.training and all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_one_step_kept_is_bptt_for_one_step():
    """VQ's start does not depend on x, so with K = 1 the last step is everything."""
    torch.manual_seed(0)
    net = Net("vq", steps=1, temperature=1.0)
    statistics = compare_gradients(net, torch.rand(1, 3, 6, 6), torch.randint(0, 4, (1, 6, 6)), "head.context.ham")
    assert statistics["cosine_truncated1"] == pytest.approx(1.0, abs=1e-6)
    assert statistics["norm_truncated1"] == pytest.approx(1.0, abs=1e-6)
    assert statistics["cosine_one_step"] < 1


def test_an_exploded_bptt_leaves_no_nan_behind(monkeypatch):
    torch.manual_seed(0)
    input_gradient = context_statistics._input_gradient
    monkeypatch.setattr(
        context_statistics,
        "_input_gradient",
        lambda *a: input_gradient(*a) * (float("inf") if a[-1] == "bptt" else 1.0),
    )
    assert (
        compare_gradients(Net("cd"), torch.rand(1, 3, 6, 6), torch.randint(0, 4, (1, 6, 6)), "head.context.ham") == {}
    )


class Attending(Net):
    def __init__(self, name, **options):
        super().__init__("vq")
        self.head.context = hb.create_context(name, 8, **options)


@pytest.mark.parametrize(
    ("name", "options", "heads"),
    [("sa", {"heads": 2}, 2), ("nonlocal", {}, 1), ("nonlocal", {"pool": True, "mode": "gaussian"}, 1), ("da", {}, 1)],
)
def test_the_rank_of_attention_is_that_of_its_matrix(name, options, heads):
    torch.manual_seed(0)
    net = Attending(name, **options)
    images, labels = torch.rand(2, 3, 6, 6), torch.randint(0, 4, (2, 6, 6))
    maps = attention_maps(net, images, "head.context")
    n, m = 36, 9 if options.get("pool") else 36
    assert maps.shape == (2, heads, n, m)
    torch.testing.assert_close(maps.sum(3), torch.ones(2, heads, n))
    statistics = measure_context(net, [(images, labels)])
    matrices = maps.flatten(0, 1).double().detach().numpy()
    sizes = np.linalg.svd(matrices, compute_uv=False) ** 2
    shares = sizes / sizes.sum(1, keepdims=True)
    assert statistics["rank_attention"] == pytest.approx(np.exp(scipy.special.entr(shares).sum(1)).mean(), rel=1e-6)
    assert statistics["numerical_attention"] == (sizes > (36 * 2.0**-23) ** 2 * sizes[:, :1]).sum(1).mean()
    assert statistics["spectrum_attention"][COUNTS.index(4)] == pytest.approx(shares[:, :4].sum(1).mean(), abs=1e-5)
    assert statistics["spectrum_attention"][-1] == pytest.approx(1, abs=1e-6)
    assert (statistics["positions"], statistics["channels"]) == (36, 8) and "rank_ham" not in statistics
    common = matrices.mean(1, keepdims=True)  # what every position takes
    left = np.linalg.svd(matrices - common, compute_uv=False) ** 2
    left_shares = left / left.sum(1, keepdims=True)
    assert statistics["rank_centred"] == pytest.approx(np.exp(scipy.special.entr(left_shares).sum(1)).mean(), rel=1e-6)
    in_common = n * np.square(common).sum((1, 2)) / np.square(matrices).sum((1, 2))
    assert statistics["common_attention"] == pytest.approx(in_common.mean(), rel=1e-6)


def test_the_output_of_a_ham_has_at_most_its_rank():
    torch.manual_seed(0)
    statistics = measure_context(Net("nmf"), [(torch.rand(2, 3, 6, 6), torch.randint(0, 4, (2, 6, 6)))])
    assert statistics["bound"] == 2 and statistics["numerical_ham"] <= 2 and 1 <= statistics["rank_ham"] <= 2
    assert statistics["spectrum_ham"][1] == pytest.approx(1, abs=1e-6)
    assert "rank_attention" not in statistics


def test_the_authors_nmf_from_the_same_dictionary_has_the_same_rank(monkeypatch):
    """Both start from their own random dictionaries; given that of the layer, the ranks agree."""
    torch.manual_seed(0)
    net = Net("nmf")
    images, labels = torch.rand(2, 3, 6, 6), torch.randint(0, 4, (2, 6, 6))
    free = measure_context(net, [(images, labels)])
    assert 1 <= free["rank_authors"] <= 2
    layer = net.get_submodule("head.context").ham
    before = record_activations("test", net, images, ["head.context.ham"])["head.context.ham"].before
    bases = prepare_solve(layer, before)[1]
    monkeypatch.setattr(torch, "rand", lambda *size, generator: bases.expand(size).clone())
    given = measure_context(net, [(images, labels)])
    assert given["rank_authors"] == pytest.approx(given["rank_ham"], rel=1e-4)
    assert free["rank_authors"] != pytest.approx(given["rank_authors"], rel=1e-4)


def test_mistakes_are_named():
    with pytest.raises(UnknownNameError, match=r"did you mean 'head\.context'"):
        measure_context(Net("nmf"), [(torch.rand(1, 3, 4, 4), torch.zeros(1, 4, 4).long())], layer="head.contxt")
    with pytest.raises(InputError, match="no images; give at least one batch"):
        measure_context(Net("nmf"), [])


@pytest.mark.gpu
@pytest.mark.parametrize("context", ["nmf", "vq", "cd", "sa", "da", "nonlocal"])
def test_effective_ranks_on_a_gpu_match_the_cpu(context):
    torch.manual_seed(0)
    net = hb.create_model("hamnet", backbone="tiny", output_stride=4, num_classes=4, context=context).eval()
    batch = torch.rand(2, 3, 40, 36), torch.randint(0, 4, (2, 40, 36))
    here = measure_context(net, [batch])
    there = measure_context(net.cuda(), [tuple(each.cuda() for each in batch)])
    assert here.keys() == there.keys()
    for key in (key for key in here if key.startswith(("rank_", "silent", "spectrum", "positions"))):
        assert there[key] == pytest.approx(here[key], rel=0.05, abs=0.02), key
