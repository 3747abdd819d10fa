"""Gradient checkpointing: same values, gradients and buffers as without, in both modes of torch.utils.checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from tiers import not_on_torch_2_6
from tolerances import assert_close
from torch import nn
from torch.utils.checkpoint import checkpoint

import hamburger as hb

HAMS = ["nmf", "vq", "cd"]
INITS = ["random", "fixed", "learned", "online", "columns"]


@pytest.fixture(params=[False, True], ids=["non-reentrant", "reentrant"])
def reentrant(request):
    return request.param


def call(layer, reentrant=None):
    return layer if reentrant is None else lambda z: checkpoint(layer, z, use_reentrant=reentrant)


def train(net, batches, reentrant=None):
    """Return outputs, input gradients, parameter gradients and buffers after one backward pass per batch."""
    net = copy.deepcopy(net).train()
    torch.manual_seed(7)
    tensors = []
    for batch in batches:
        z = batch.clone().requires_grad_()
        y = call(net, reentrant)(z)
        (y * torch.linspace(0, 9, y.numel()).sin().view(y.shape)).sum().backward()
        tensors += [y.detach(), z.grad]
    return tensors + [p.grad for p in net.parameters()] + [b.double() for b in net.buffers()]


def check_same(net, batches, reentrant):
    expected, actual = train(net, batches), train(net, batches, reentrant)
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("ham", HAMS)
def test_checkpointing_changes_nothing(ham, init, reentrant):
    layer = hb.Hamburger(12, ham=ham, rank=4, init=init)
    batches = [torch.randn(2, 12, 5, 6) for _ in range(3)]
    check_same(layer, batches, reentrant)
    check_same(layer, [batches[0]] * 3, reentrant)


@pytest.mark.parametrize("options", [{"version": "v2"}, {"heads": 3}, {"norm": "none"}], ids=str)
def test_checkpointing_changes_no_other_version(options, reentrant):
    check_same(hb.Hamburger(12, rank=4, init="online", **options), [torch.randn(2, 12, 5, 6)] * 2, reentrant)


def test_layer_in_the_middle_of_a_checkpointed_segment(reentrant):
    burger = hb.Hamburger(12, rank=4, init="online")
    net = nn.Sequential(
        nn.Conv2d(12, 12, 3), hb.layers.norm.BatchNorm2d(12), burger, nn.Dropout(0.3), nn.Conv2d(12, 5, 1)
    )
    check_same(net, [torch.randn(2, 12, 7, 7) for _ in range(2)], reentrant)


class Nested(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.burger, self.reentrant = hb.Hamburger(12, rank=4, init="online"), reentrant

    def forward(self, z):
        return checkpoint(self.burger, z, use_reentrant=self.reentrant) * 2


def test_nested_checkpoints(reentrant):
    check_same(Nested(reentrant), [torch.randn(2, 12, 5, 6) for _ in range(2)], reentrant)


def two_calls(net, first, second, reentrant=None):
    """One layer called twice before the backward pass."""
    net = copy.deepcopy(net).train()
    z = first.clone().requires_grad_()
    y = call(net, reentrant)(z).square().sum() + call(net, reentrant)(second.clone().requires_grad_()).sum()
    y.backward()
    return [z.grad, *(p.grad for p in net.parameters()), *(b.double() for b in net.buffers())]


def test_a_shared_layer_recomputes_each_call_from_its_own_dictionary(reentrant):
    layer, first, second = hb.Hamburger(12, rank=4, init="online"), *torch.randn(2, 2, 12, 5, 6)
    expected, actual = two_calls(layer, first, second), two_calls(layer, first, second, reentrant)
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b)


def test_two_equal_calls_that_cannot_be_told_apart_raise(reentrant):
    layer, z = hb.Hamburger(12, rank=4, init="online"), torch.randn(2, 12, 5, 6)
    with pytest.raises(hb.errors.RecomputationError, match="init='fixed'"):
        two_calls(layer, z, z, reentrant)


def test_a_call_that_is_too_long_ago_raises(reentrant):
    layer = hb.Hamburger(12, rank=4, init="online").train()
    z = torch.randn(2, 12, 5, 6, requires_grad=True)
    y = call(layer, reentrant)(z)
    with torch.no_grad():
        for _ in range(20):
            layer(torch.randn(2, 12, 5, 6))
    with pytest.raises(hb.errors.RecomputationError, match="init='fixed'"):
        y.sum().backward()


@not_on_torch_2_6
@pytest.mark.parametrize("inside", [False, True], ids=["compiled layer", "compiled checkpoint"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: hb.Hamburger(12, rank=4, init="online"),
        pytest.param(lambda: hb.create_context("ema", 12), marks=pytest.mark.full),
    ],
)
def test_compiled_and_checkpointed_layers_with_moving_bases_raise(make, inside, reentrant):
    layer = make().train()
    compiled = torch.compile(call(layer, reentrant) if inside else layer, backend="aot_eager")
    run = compiled if inside else call(compiled, reentrant)
    y = run(torch.randn(2, 12, 5, 6, requires_grad=True))
    with pytest.raises(hb.errors.RecomputationError, match="compile without checkpointing"):
        y.sum().backward()


@not_on_torch_2_6
@pytest.mark.parametrize("inside", [False, True], ids=["compiled layer", "compiled checkpoint"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: hb.Hamburger(12, rank=4),
        pytest.param(lambda: hb.Hamburger(12, rank=4, init="fixed", version="v2"), marks=pytest.mark.full),
        pytest.param(
            lambda: hb.layers.norm.convert_sync(hb.Hamburger(12, rank=4, version="v1")), marks=pytest.mark.full
        ),
        pytest.param(lambda: hb.create_context("a2", 12), marks=pytest.mark.full),
    ],
    ids=["paper", "v2", "v1 with synchronised norms", "a2"],
)
def test_compiled_and_checkpointed_layers_update_their_statistics_once(make, inside, reentrant):
    torch._dynamo.reset()  # its limit of recompilations counts those of other tests
    layer = make().train()
    net = copy.deepcopy(layer)
    compiled = torch.compile(call(net, reentrant) if inside else net, backend="aot_eager", fullgraph=True)
    run = compiled if inside else call(compiled, reentrant)
    for batch in torch.randn(2, 2, 12, 5, 6):
        gradients = []
        for module in (layer, run):
            torch.manual_seed(3)
            z = batch.clone().requires_grad_()
            module(z).sin().sum().backward()
            gradients.append(z.grad)
        assert_close(*gradients)
    for a, b in zip(net.buffers(), layer.buffers(), strict=True):
        assert_close(a.double(), b.double())


def test_compiled_layers_with_moving_bases_train_without_checkpointing():
    layer, batches, results = hb.Hamburger(12, rank=4, init="online"), torch.randn(2, 2, 12, 5, 6), []
    for compiled in (False, True):
        net = copy.deepcopy(layer).train()
        run = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net
        for batch in batches:
            run(batch).sin().sum().backward()
        results.append([p.grad for p in net.parameters()] + [b.double() for b in net.buffers()])
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


def test_a_nonfinite_batch_is_recomputed_too(reentrant):
    layer = hb.Hamburger(12, rank=4, init="online").train()
    z = torch.full((2, 12, 5, 6), torch.nan, requires_grad=True)
    before = layer.ham.dictionary.bases.clone()
    call(layer, reentrant)(z).sum().backward()
    assert torch.equal(layer.ham.dictionary.bases, before)


def test_without_checkpointing_the_statistics_move_at_every_call():
    layer = hb.Hamburger(12, rank=4, init="online").train()
    for count in (1, 2):
        before = layer.ham.dictionary.bases.clone()
        layer(torch.randn(2, 12, 5, 6))
        assert layer.norm.num_batches_tracked == count
        assert not torch.equal(layer.ham.dictionary.bases, before)
