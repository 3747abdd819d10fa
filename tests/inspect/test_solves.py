"""Solves inside networks by layer name, against `decompose`, autograd through the network and finite differences."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.errors import InputError, OptionError, UnknownNameError
from hamburger.inspect.solves import convergence, gradient_series, reconstruction_errors

IMAGES = torch.rand(2, 3, 12, 8, generator=torch.Generator().manual_seed(3))


def network(name, *, heads=1, grad="one-step", steps=3):
    torch.manual_seed(5)
    burger = hb.Hamburger(8, ham=name, rank=3, steps=steps, heads=heads, grad=grad)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4, padding=1), burger, nn.Flatten(), nn.Linear(48, 1))


def received(net):
    """The input of a network's ham in evaluation.   ->   b d n, or b d h w where the ham uses neighbours"""
    kept = []
    handle = net[1].ham.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach()))
    with torch.no_grad():
        net.eval()(IMAGES.to(net[0].weight))
    handle.remove()
    return kept[0].double()


@pytest.mark.parametrize("name", hb.hams.names())
@pytest.mark.parametrize("heads", [1, 2])
def test_reconstruction_errors_match_decompose(name, heads):
    net = network(name, heads=heads)
    x, layer = received(net), net[1].ham
    actual = reconstruction_errors(net.train(), IMAGES, layer="1", steps=4)
    assert net.training
    assert actual.shape == (2, heads, 5)
    for image in range(2):
        for head, part in enumerate(x[image].chunk(heads)):
            for steps in range(5):
                bases = layer.dictionary.bases[[head]].double()
                part = part.flatten(1)
                out = hb.decompose(part[None], layer.ham, steps=steps, bases=bases, grid=(3, 2)).reconstruction[0]
                error = torch.linalg.matrix_norm(part - out) / torch.linalg.matrix_norm(part)
                torch.testing.assert_close(actual[image, head, steps], error)


@pytest.mark.parametrize("name", ["vq", "cd"])
def test_convergence_measures_the_updates_of_the_bases(name):
    net = network(name)
    x, layer = received(net), net[1].ham
    bases = layer.dictionary.bases.double()
    paths = [hb.decompose(x[1:], layer.ham, steps=k, bases=bases).bases for k in range(6)]
    moves = [float((after - before).norm()) for before, after in pairwise(paths)]
    actual = convergence(net, IMAGES, steps=5)
    assert [len(heads) for heads in actual] == [1, 1]
    assert actual[1][0].moves == pytest.approx(moves, rel=1e-9)


@pytest.mark.parametrize("name", hb.hams.names())
@pytest.mark.parametrize("heads", [1, 2])
def test_kept_terms_match_truncated_gradients(name, heads):
    net = network(name, heads=heads).double().eval()
    images = IMAGES.double()
    series = gradient_series(net, images, lambda y: y.square().sum())
    assert series.terms.shape[:3] == (2, heads, 3)
    shown = {"one-step": series.truncate(0), "truncated:2": series.truncate(2), "bptt": series.total}
    for grad, value in shown.items():
        other = network(name, heads=heads, grad=grad).double().eval()
        leaves = []

        def cut(_, args, leaves=leaves):
            leaves.append(args[0].detach().requires_grad_())
            return (leaves[-1],)

        other[1].ham.register_forward_pre_hook(cut)
        (expected,) = torch.autograd.grad(other(images).square().sum(), leaves[-1])
        torch.testing.assert_close(value.flatten(1, 2), expected.flatten(2), rtol=1e-6, atol=1e-9)


def test_total_gradient_matches_finite_differences():
    net = network("cd").double().eval()
    images, layer = IMAGES[:1].double(), net[1].ham
    series = gradient_series(net, images, lambda y: y.square().sum())
    x, sizes = received(net)[:1].clone(), []
    handle = layer.register_forward_pre_hook(lambda *_: (x,))
    for step in (1e-5, -2e-5):
        x[0, 2, 3] += step
        with torch.no_grad():
            sizes.append(float(net(images).square().sum()))
    handle.remove()
    assert (sizes[0] - sizes[1]) / 2e-5 == pytest.approx(float(series.total[0, 0, 2, 3]), rel=1e-4)


def test_gradient_series_works_with_frozen_weights():
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    )
    hb.insert_context(net, {"1": hb.Hamburger(6, rank=2, steps=2)}, gate="one")
    net.requires_grad_(False)
    series = gradient_series(net, IMAGES, lambda y: y.logsumexp(1).sum(), layer="1")
    assert series.terms.shape == (2, 1, 2, 6, 96)
    assert float(series.direct.norm()) > 0
    assert all(weight.grad is None for weight in net.parameters())
    assert reconstruction_errors(net, IMAGES).shape == (2, 1, 3)


def test_mistakes_are_named():
    net = network("nmf")
    with pytest.raises(UnknownNameError, match=r"reconstruction_errors: the model has no layer '1\.hum'; did you mean"):
        reconstruction_errors(net, IMAGES, layer="1.hum")
    with pytest.raises(InputError, match="convergence: layer '0' contains no ham"):
        convergence(net, IMAGES, layer="0")
    with pytest.raises(OptionError, match="steps must be a whole number"):
        reconstruction_errors(net, IMAGES, steps=-1)
    with pytest.raises(InputError, match=r"one number \(got a tensor of \(2, 1\)"):
        gradient_series(net, IMAGES, lambda y: y)
    with pytest.raises(InputError, match=r"the loss must be finite \(got nan"):
        gradient_series(net, IMAGES, lambda y: y.sum() * torch.nan)
    with pytest.raises(InputError, match="does not depend on the ham's output"):
        gradient_series(net, IMAGES, lambda y: torch.zeros(()))
