"""Ranks, silent channels and gradient angles of a network, against known values."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import InputError, UnknownNameError
from hamburger.inspect import evaluation
from hamburger.inspect.activations import attention_layers, attention_maps, cumulative_energy, effective_rank
from hamburger.inspect.evaluation import COUNTS, compare_gradients, measure_context, silent_share


def test_effective_rank_of_known_spectra():
    equal = torch.eye(5)[None]
    single = torch.ones(1, 5, 7)
    two = torch.diag(torch.tensor([3.0, 3.0, 0.0, 0.0]))[None]
    for x, rank in ((equal, 5.0), (single, 1.0), (two, 2.0)):
        assert effective_rank(cumulative_energy(x)).item() == pytest.approx(rank, rel=1e-5)


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
    found = measure_context(net, [batch, batch])
    assert found == measure_context(net, [batch])
    assert {"rank_before", "rank90_after", "silent_before", "cosine_one_step", "norm_truncated2"} <= set(found)
    assert 1 <= found["rank_after"] <= 8
    assert net.training and all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_one_step_kept_is_bptt_for_one_step():
    """VQ's start does not depend on x, so with K = 1 the last step is everything."""
    torch.manual_seed(0)
    net = Net("vq", steps=1, temperature=1.0)
    found = compare_gradients(net, torch.rand(1, 3, 6, 6), torch.randint(0, 4, (1, 6, 6)), "head.context.ham")
    assert found["cosine_truncated1"] == pytest.approx(1.0, abs=1e-6)
    assert found["norm_truncated1"] == pytest.approx(1.0, abs=1e-6)
    assert found["cosine_one_step"] < 1


def test_an_exploded_bptt_leaves_no_nan_behind(monkeypatch):
    torch.manual_seed(0)
    input_gradient = evaluation._input_gradient
    monkeypatch.setattr(
        evaluation,
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
    found = measure_context(net, [(images, labels)])
    matrices = maps.flatten(0, 1).double().detach().numpy()
    sizes = np.linalg.svd(matrices, compute_uv=False) ** 2
    shares = sizes / sizes.sum(1, keepdims=True)
    assert found["rank_attention"] == pytest.approx(np.exp(scipy.special.entr(shares).sum(1)).mean(), rel=1e-6)
    assert found["numerical_attention"] == np.linalg.matrix_rank(matrices, tol=None, rtol=36 * 2.0**-23).mean()
    assert found["spectrum_attention"][COUNTS.index(4)] == pytest.approx(shares[:, :4].sum(1).mean(), abs=1e-5)
    assert found["spectrum_attention"][-1] == pytest.approx(1, abs=1e-6)
    assert (found["positions"], found["channels"]) == (36, 8) and "rank_ham" not in found
    common = matrices.mean(1, keepdims=True)  # what every position takes
    left = np.linalg.svd(matrices - common, compute_uv=False) ** 2
    left_shares = left / left.sum(1, keepdims=True)
    assert found["rank_centred"] == pytest.approx(np.exp(scipy.special.entr(left_shares).sum(1)).mean(), rel=1e-6)
    in_common = n * np.square(common).sum((1, 2)) / np.square(matrices).sum((1, 2))
    assert found["common_attention"] == pytest.approx(in_common.mean(), rel=1e-6)


def test_the_output_of_a_ham_has_at_most_its_rank():
    torch.manual_seed(0)
    found = measure_context(Net("nmf"), [(torch.rand(2, 3, 6, 6), torch.randint(0, 4, (2, 6, 6)))])
    assert found["bound"] == 2 and found["numerical_ham"] <= 2 and 1 <= found["rank_ham"] <= 2
    assert found["spectrum_ham"][1] == pytest.approx(1, abs=1e-6)
    assert "rank_attention" not in found


def test_attention_layers_are_found_and_missed_by_name():
    net = Attending("da")
    assert attention_layers(net) == ["head.context.position.1"]
    assert attention_maps(net, torch.rand(1, 3, 4, 4), "").shape == (1, 1, 16, 16)
    with pytest.raises(InputError, match="must contain one attention layer; it has none"):
        attention_maps(net, torch.rand(1, 3, 4, 4), "stem")
    both = nn.Sequential(nn.Conv2d(3, 8, 1), hb.create_context("sa", 8), hb.create_context("nonlocal", 8))
    with pytest.raises(InputError, match="must contain one attention layer; it has: 1, 2"):
        attention_maps(both, torch.rand(1, 3, 4, 4), "")


def test_mistakes_are_named():
    with pytest.raises(UnknownNameError, match=r"did you mean 'head\.context'"):
        measure_context(Net("nmf"), [(torch.rand(1, 3, 4, 4), torch.zeros(1, 4, 4).long())], layer="head.contxt")
    with pytest.raises(InputError, match="no images; give at least one batch"):
        measure_context(Net("nmf"), [])
