"""The four initialisations of Table 8, columns of the input, online dictionaries over processes, and that for video."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tiers import not_on_torch_2_6
from tolerances import assert_close

import hamburger as hb
from hamburger.layers import fused_block


def layer_with(init, **options):
    return hb.Hamburger(12, ham="nmf", rank=4, init=init, parts={"ham"}, norm="none", version="paper", **options)


def test_dictionary_is_stored_as_documented():
    for init in ("random", "fixed", "online"):
        layer = layer_with(init)
        assert dict(layer.named_buffers())["ham.dictionary.bases"].shape == (1, 12, 4)
        assert "ham.dictionary.bases" in layer.state_dict()
        assert not list(layer.parameters())
    assert dict(layer_with("learned").named_parameters())["ham.dictionary.bases"].shape == (1, 12, 4)


@pytest.mark.parametrize("options", [{}, {"version": "v2+", "dual": True}], ids=str)
def test_columns_are_not_stored(options):
    layer = hb.Hamburger(12, rank=4, init="columns", **options)
    assert not [name for name in layer.state_dict() if "dictionary" in name]


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("ham", ["nmf", "vq", "cd"])
def test_each_head_and_sample_starts_from_its_own_columns(ham, train):
    layer = hb.HamLayer(hb.hams.create(ham, rank=3), 12, heads=3, init="columns").train(train)
    x, state = torch.rand(2, 12, 30), torch.get_rng_state()
    sections = [hb.decompose(part, layer.ham, bases="columns").reconstruction for part in x.split(4, dim=1)]
    assert_close(layer(x), torch.cat(sections, dim=1), slack=10)
    assert_close(layer(x)[1:], layer(x[1:]), slack=10)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_channel_decomposition_starts_from_channels():
    layer = hb.HamLayer(hb.NMF(rank=3), 12, axis="channel", init="columns")
    x = torch.rand(2, 12, 30)
    assert_close(layer(x), hb.decompose(x.mT, layer.ham, bases="columns").reconstruction.mT)


def test_bptt_of_a_layer_differentiates_its_columns():
    x = torch.rand(2, 12, 30, requires_grad=True)
    gradients = {}
    for grad in ("one-step", "bptt"):
        layer = hb.HamLayer(hb.CD(rank=3, temperature=0.3), 12, init="columns", steps=0, grad=grad)
        gradients[grad] = torch.autograd.grad(layer(x).square().sum(), x)[0]
        out = hb.decompose(x, layer.ham, steps=0, bases="columns", grad=grad).reconstruction
        assert_close(gradients[grad], torch.autograd.grad(out.square().sum(), x)[0])
    assert (gradients["bptt"] - gradients["one-step"]).norm() > 1e-3 * gradients["bptt"].norm()


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


# -- carried from frame to frame ---------------------------------------------------------------------------------------


def carry(ham="nmf", **options):
    options |= {"temperature": 0.5} if ham != "nmf" else {}
    return hb.HamLayer(hb.hams.create(ham, rank=4, **options), 12, steps=5, eval_steps=2, init="carry").eval()


@pytest.mark.parametrize("ham", ["nmf", "vq", "cd"])
def test_a_frame_starts_from_the_bases_of_the_previous_call(ham):
    layer, frames = carry(ham), torch.rand(4, 2, 12, 30)
    bases = layer.dictionary.bases
    for steps, frame in zip((5, 2, 2, 2), frames, strict=True):
        out = hb.decompose(frame, layer.ham, steps=steps, bases=bases)
        assert_close(layer(frame), out.reconstruction, slack=10)
        bases = F.normalize(out.bases, dim=1)
    assert list(layer.state_dict()) == ["dictionary.bases"]


def test_a_new_video_starts_from_the_stored_bases():
    layer, x = carry(), torch.rand(2, 12, 30)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert torch.equal(layer.eval()(x), first)
    assert torch.equal(layer(x[:1]), carry()(x[:1]))  # another batch size
    layer.train()
    torch.manual_seed(0)
    drawn = layer(x)
    torch.manual_seed(0)
    assert torch.equal(drawn, hb.decompose(x, layer.ham, steps=5).reconstruction)
    assert torch.equal(layer.eval()(x), first)


def test_black_and_broken_frames_do_not_spoil_the_next():
    layer, x = carry(), torch.rand(2, 12, 30)
    layer(x)
    layer(torch.stack([torch.zeros(12, 30), torch.full((12, 30), float("nan"))]))
    stored = hb.decompose(x, layer.ham, steps=2, bases=layer.dictionary.bases)
    assert_close(layer(x), stored.reconstruction)


def test_an_exported_layer_carries_nothing():
    layer, x = carry(), torch.rand(2, 12, 30)
    expected = layer(x)
    graph = torch.export.export(layer, (x,), strict=False).module()
    for _ in range(2):
        assert_close(graph(x), expected)
    assert_close(layer.eval()(x), expected)


def test_no_fused_block_evaluates_a_layer_that_carries_bases():
    layer = hb.Hamburger(16, rank=4, init="carry")
    assert fused_block.find_parts(layer) is not None  # in training it draws, as with init="random"
    assert fused_block.find_parts(layer.eval()) is None


@not_on_torch_2_6  # which cannot tell compilation from export
@pytest.mark.full
def test_a_compiled_layer_carries_its_bases():
    frames = torch.rand(3, 2, 12, 30)
    eager, compiled = carry(), torch.compile(carry(), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for frame in frames:
            assert_close(compiled(frame), eager(frame), slack=10)
    torch._dynamo.reset()
