"""The four initialisations of Table 8, and the online dictionary over batches and processes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close

import hamburger as hb


def layer_with(init, **options):
    return hb.Hamburger(12, ham="nmf", rank=4, init=init, parts={"ham"}, norm="none", version="paper", **options)


def test_dictionary_is_stored_as_documented():
    for init in ("random", "fixed", "online"):
        layer = layer_with(init)
        assert dict(layer.named_buffers())["ham.dictionary.bases"].shape == (1, 12, 4)
        assert "ham.dictionary.bases" in layer.state_dict()
        assert not list(layer.parameters())
    assert dict(layer_with("learned").named_parameters())["ham.dictionary.bases"].shape == (1, 12, 4)


def test_fixed_dictionary_is_the_same_in_training_and_evaluation():
    layer, z = layer_with("fixed"), torch.rand(2, 12, 30)
    assert torch.equal(layer.train()(z), layer.eval()(z))


def test_learned_dictionary_is_trained_by_bptt_alone():
    layer, z = layer_with("learned"), torch.rand(2, 12, 30)
    assert str(layer.ham.grad) == "bptt"
    layer(z).square().sum().backward()
    bases = layer.ham.dictionary.bases
    reference = bases.detach().clone().requires_grad_()
    out = hb.decompose(z, layer.ham.ham, bases=reference, grad="bptt").reconstruction
    (expected,) = torch.autograd.grad((z + out).square().sum(), reference)
    assert expected.norm() > 0
    assert_close(bases.grad, expected)


def test_online_dictionary_follows_the_batch_mean_in_training():
    layer, z = layer_with("online", online_momentum=0.25), torch.rand(3, 12, 30)
    before = layer.ham.dictionary.bases.clone()
    layer.eval()(z)
    assert torch.equal(layer.ham.dictionary.bases, before)
    solution = hb.decompose(z, layer.ham.ham, bases=before).bases.mean(0, keepdim=True)
    layer.train()(z)
    assert_close(layer.ham.dictionary.bases, F.normalize(0.75 * before + 0.25 * solution, dim=1))


def test_default_momentum_matches_the_authors_code():
    layer, z = layer_with("online"), torch.rand(3, 12, 30)
    before = layer.ham.dictionary.bases.clone()
    solution = hb.decompose(z, layer.ham.ham, bases=before).bases.mean(0, keepdim=True)
    layer.train()(z)
    assert_close(layer.ham.dictionary.bases, F.normalize(before + 0.9 * (solution - before), dim=1))


@pytest.mark.parametrize("ham", ["nmf", "vq", "cd"])
def test_online_dictionary_has_one_entry_per_head(ham):
    layer = hb.Hamburger(12, ham=ham, rank=4, heads=3, init="online")
    layer.train()(torch.rand(2, 12, 5, 5))
    assert layer.ham.dictionary.bases.shape == (3, 4, 4)
    assert (layer.ham.dictionary.bases.norm(dim=1) < 1 + 1e-5).all()


def test_learned_nmf_dictionary_stays_nonnegative():
    layer = hb.Hamburger(16, rank=4, init="learned")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    z, target = torch.randn(4, 16, 8, 8), torch.randn(4, 16, 8, 8)
    first = None
    for _ in range(30):
        optimizer.zero_grad()
        loss = (layer(z) - target).square().mean()
        loss.backward()
        optimizer.step()
        first = loss.item() if first is None else first
    assert loss.item() < first
    assert layer.ham.dictionary.bases.abs().max() < 100
    x = layer.lower(z.flatten(2)).relu()
    assert (layer.ham(x) >= 0).all()


@pytest.mark.parametrize("ham", ["nmf", "vq", "cd"])
def test_nonfinite_batch_does_not_change_an_online_dictionary(ham):
    layer = hb.Hamburger(12, ham=ham, rank=4, init="online", parts={"ham"}, norm="none").train()
    before = layer.ham.dictionary.bases.clone()
    layer(torch.full((2, 12, 9), torch.inf))
    assert torch.equal(layer.ham.dictionary.bases, before)
    layer(torch.rand(2, 12, 9))
    assert layer.ham.dictionary.bases.isfinite().all()
    assert not torch.equal(layer.ham.dictionary.bases, before)
