"""What the fused block saves for its backward pass, in Triton's interpreter."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from test_fused_block_interpreted import NAMES, pair, poisoned, taken  # noqa: F401  fixtures
from tolerances import assert_close

from hamburger.kernels import launcher
from hamburger.kernels.launcher import PackedTensors, pack_tensors

WAYS = [("nmf", "apart"), *((name, "bundled") for name in NAMES)]


@pytest.fixture(params=["apart", "bundled"])
def kept(request, monkeypatch):
    """How tensors are saved for backward: separately, or packed, as the launch cache does on a GPU."""
    if request.param == "bundled":

        def together(solve, inputs):
            outputs, saved = solve(*inputs)
            return outputs, pack_tensors(saved) if saved else PackedTensors((), None)

        monkeypatch.setattr(launcher, "_call_uncached", together)
    return request.param


def anew(t):
    """As torch's save_on_cpu restores tensors from pinned memory: always contiguous."""
    return torch.empty(t.size(), dtype=t.dtype).copy_(t)


def inside(t):
    """In the middle of something larger."""
    whole = torch.empty(t.numel() * t.element_size() + 48, dtype=torch.uint8)
    return whole[48:].view(t.dtype).view(t.shape).copy_(t) if t.is_contiguous() else t


@pytest.mark.parametrize(
    "name, channels_last, moved",
    [
        ("nmf", False, inside),
        ("nmf", True, anew),
        ("vq", True, anew),
        ("cd", False, inside),
    ],
)
def test_saved_tensor_hooks_may_offload_and_restore(name, channels_last, moved, kept):
    layer, _ = pair(name, init="fixed")
    x = torch.randn(2, 24, 6, 7)
    x = x.to(memory_format=torch.channels_last) if channels_last else x

    def gradients(hooks):
        z = x.detach().clone().requires_grad_()
        layer.zero_grad()
        with hooks:
            y = layer.train()(z)
        (y * torch.linspace(0, 9, y.numel()).sin().view(y.shape)).sum().backward()
        return z.grad, *(p.grad for p in layer.parameters())

    expected = gradients(contextlib.nullcontext())
    actual = gradients(torch.autograd.graph.saved_tensors_hooks(moved, lambda t: t))
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b.double())


@pytest.mark.parametrize("name, kept", WAYS, indirect=["kept"])
def test_backward_twice_and_under_checkpointing(name, kept):
    layer, _ = pair(name, init="fixed")
    x = torch.randn(2, 24, 6, 7)

    def gradient(y, z, **options):
        return torch.autograd.grad(y.square().sum(), z, **options)[0]

    z = x.clone().requires_grad_()
    y = layer.train()(z)
    first = gradient(y, z, retain_graph=True)
    assert torch.equal(gradient(y, z), first)
    z = x.clone().requires_grad_()
    again = torch.utils.checkpoint.checkpoint(layer, z, use_reentrant=False)
    assert_close(gradient(again, z), first.double())


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpointing_leaves_statistics_and_dictionary_as_without(reentrant):
    results, (start, _) = [], pair("nmf", init="online")
    for checkpointed in (False, True):
        layer = copy.deepcopy(start).train()
        for shift in range(2):
            z = torch.linspace(-9, 9, 2 * 24 * 42).add(shift).sin().view(2, 24, 6, 7).requires_grad_()
            y = torch.utils.checkpoint.checkpoint(layer, z, use_reentrant=reentrant) if checkpointed else layer(z)
            y.square().sum().backward()
        results.append([y.detach(), z.grad, *(b.float() for b in layer.buffers())])
    for ours, expected in zip(*results, strict=True):
        assert_close(ours, expected.double())


@pytest.mark.parametrize("name, kept", WAYS, indirect=["kept"])
def test_output_without_relu_may_be_modified_in_place(name, taken, kept):  # noqa: F811
    layer, _ = pair(name, init="fixed", version="paper")
    x = torch.randn(2, 24, 6, 7)
    gradients = []
    for change in (lambda y: y.add_(1).relu_(), lambda y: (y + 1).relu()):
        z = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(change(layer.train()(z)).sum(), z)[0])
    assert taken == ["train"] * 2
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name, kept", WAYS, indirect=["kept"])
def test_modified_saved_tensors_raise_in_backward(name, kept):
    layer, _ = pair(name, init="fixed")
    h = torch.randn(2, 24, 6, 7, requires_grad=True) * 1
    y = layer.train()(h)
    with torch.no_grad():
        h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
