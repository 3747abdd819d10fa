"""Object-contextual representations, region by region and position by position."""

from __future__ import annotations

import math

import pytest
import torch
from reference_layers import cbr, count, randomise
from tolerances import assert_close

from hamburger.contexts.ocr import OCR


def by_loops(layer, x, logits):
    b, c, h, w = x.shape
    flat, p = x.flatten(2), logits.flatten(2)
    k = p.shape[1]
    objects = torch.zeros(b, c, k, 1, dtype=x.dtype)
    for image in range(b):
        for region in range(k):
            weights = p[image, region].exp()
            objects[image, :, region, 0] = flat[image] @ (weights / weights.sum())
    q = cbr(layer.query[1], cbr(layer.query[0], x)).flatten(2)
    key = cbr(layer.key[1], cbr(layer.key[0], objects)).flatten(2)
    value = cbr(layer.value, objects).flatten(2)
    y = torch.zeros(b, q.shape[1], h * w, dtype=x.dtype)
    for image in range(b):
        for i in range(h * w):
            scores = (key[image].T @ q[image, :, i] / math.sqrt(q.shape[1])).exp()
            y[image, :, i] = value[image] @ (scores / scores.sum())
    y = cbr(layer.upper, y.unflatten(2, (h, w)))
    return cbr(layer.join, torch.cat([y, x], 1))


@pytest.mark.parametrize("k", [1, 3, 19])
@pytest.mark.parametrize("width", [None, 5])
def test_formula_with_logits(k, width):
    layer = randomise(OCR(6, width=width))
    x, logits = torch.randn(2, 6, 4, 5, dtype=torch.float64), torch.randn(2, k, 4, 5, dtype=torch.float64)
    assert_close(layer(x, logits), by_loops(layer, x, logits))


def test_without_logits_regions_are_channel_groups():
    layer = randomise(OCR(6, regions=3))
    x = torch.randn(2, 6, 4, 5, dtype=torch.float64)
    logits = torch.stack([(x[:, 2 * r] + x[:, 2 * r + 1]) / 2 for r in range(3)], 1)
    assert_close(layer(x), by_loops(layer, x, logits))
    assert (OCR(512).regions, OCR(48).regions, OCR(6).regions) == (64, 16, 2)


def test_num_classes_adds_a_linear_classifier():
    layer = randomise(OCR(6, num_classes=4))
    x = torch.randn(2, 6, 4, 5, dtype=torch.float64)
    classifier = layer.classifier
    want = torch.einsum("kc,bchw->bkhw", classifier.weight[:, :, 0, 0], x) + classifier.bias[:, None, None]
    out, logits = layer(x, return_logits=True)
    assert_close(logits, want)
    assert_close(out, by_loops(layer, x, want))
    auxiliary = torch.randn(2, 7, 4, 5, dtype=torch.float64)
    assert_close(layer(x, auxiliary), by_loops(layer, x, auxiliary))  # logits of an auxiliary head come first


def test_regions_are_means_over_positions():
    # the two softmaxes have different axes: regions gather over positions, positions read over regions
    layer = randomise(OCR(6))
    x, logits = torch.randn(2, 6, 4, 5, dtype=torch.float64), torch.randn(2, 3, 4, 5, dtype=torch.float64)
    assert_close(layer.gather(torch.ones_like(x), logits), torch.ones(2, 6, 3))
    logits[:, 1] -= 1000.0  # a region is a distribution: a constant on its logits is nothing
    assert layer.gather(x, logits).isfinite().all()
    shifted = logits.clone()
    shifted[:, 1] += 1000.0
    assert_close(layer(x, logits), layer(x, shifted))


def test_permuting_classes_changes_nothing():
    layer = randomise(OCR(6))
    x, logits = torch.randn(2, 6, 4, 5, dtype=torch.float64), torch.randn(2, 5, 4, 5, dtype=torch.float64)
    assert_close(layer(x, logits[:, torch.randperm(5)]), layer(x, logits))


def test_parameter_counts():
    assert count(OCR(512)) == 1_184_256
    assert count(OCR(512, num_classes=21)) == 1_184_256 + 512 * 21 + 21
    assert count(OCR(512, regions=8)) == 1_184_256


def test_one_region_in_a_batch_of_one_trains():
    layer = OCR(6).train()
    layer(torch.randn(1, 6, 4, 5), torch.randn(1, 1, 4, 5)).square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_dropout_drops_whole_channels_in_training():
    layer, x = OCR(32, dropout=0.5), torch.randn(2, 32, 4, 5)
    assert torch.equal(layer.eval()(x), layer.eval()(x))
    layer.train()
    layer.join[1].bias.data.fill_(10.0)  # ReLU itself gives no zeros now
    dead = (layer(x) == 0).flatten(2)
    assert torch.equal(dead.all(2), dead.any(2))
    assert 10 < dead.all(2).sum() < 54


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: OCR(8, regions=3), "3 regions do not divide the channels 8; choose a divisor"),
        (lambda: OCR(8, regions=2, num_classes=2), "give num_classes or regions, not both"),
        (lambda: OCR(8, num_classes=0), "num_classes must be"),
        (lambda: OCR(8, width=0), "width must be"),
        (lambda: OCR(8, dropout=-0.1), "dropout must be a number of at least 0 and below 1"),
        (lambda: OCR(1), "channels must be a whole number of at least 2"),
        (lambda: OCR(8)(torch.rand(2, 8, 4, 4), torch.rand(2, 3, 4, 5)), "OCR: w is 4 in x .* but 5 in logits"),
        (lambda: OCR(8)(torch.rand(2, 8, 4, 4), torch.rand(2, 3, 16)), "logits must have 4 axes 'b k h w'"),
    ],
)
def test_messages(build, message):
    with pytest.raises(ValueError, match=message):
        build()
