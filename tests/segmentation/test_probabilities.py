"""Scales, flips and windows, with networks of known output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hamburger.errors import OptionError
from hamburger.segmentation.evaluate import predict_labels, predict_probabilities
from hamburger.training.supervised import SINGLE_SCALE, EvaluationProtocol


class Pointwise(nn.Module):
    """Logits of a pixel from that pixel alone, so that windows and flips cannot matter."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def forward(self, x):
        self.sizes.append(tuple(x.shape[-2:]))
        return torch.stack([x[:, 0], x[:, 1] * 2, x[:, 2] - 1], 1)


class Column(nn.Module):
    """Predicts class 0 in the left half of its input and class 1 in the right half, with certainty."""

    def forward(self, x):
        w = x.shape[-1]
        right = (torch.arange(w) >= w / 2).float().expand(x.shape[0], *x.shape[-2:])
        return 20 * torch.stack([1 - right, right], 1)


def softmax(x):
    return Pointwise()(x).softmax(1)


@pytest.mark.parametrize("size", [(40, 53), (16, 16), (7, 90), (33, 1)])
def test_windows_and_flips_do_not_change_a_pointwise_network(size):
    x = torch.randn(2, 3, *size)
    for protocol in (
        SINGLE_SCALE,
        EvaluationProtocol(flip=True),
        EvaluationProtocol(window=16),
        EvaluationProtocol(window=20, flip=True),
    ):
        torch.testing.assert_close(predict_probabilities(Pointwise(), x, protocol), softmax(x))
        assert torch.equal(predict_labels(Pointwise(), x, protocol), softmax(x).argmax(1))


def test_windows_cover_every_pixel_and_never_leave_the_image():
    net = Pointwise()
    predict_probabilities(net, torch.randn(1, 3, 70, 41), EvaluationProtocol(window=32))
    assert set(net.sizes) == {(32, 32)}
    assert len(net.sizes) == 3 * 2  # starts 0, 22, 38 and 0, 9
    short = Pointwise()
    predict_probabilities(short, torch.randn(1, 3, 20, 41), EvaluationProtocol(window=32))
    assert set(short.sizes) == {(20, 32)}


def test_overlapping_windows_are_averaged():
    """Two windows of a wide image disagree in the overlap: one calls it right, the other left."""
    actual = predict_probabilities(Column(), torch.zeros(1, 3, 16, 26), EvaluationProtocol(window=16))[0, 1, 0]
    # windows start at 0 and 10; 0-7 left, 8-9 right by the first alone, 10-15 right and left, 16-17 left, 18-25 right
    expected = torch.tensor([0.0] * 8 + [1.0] * 2 + [0.5] * 6 + [0.0] * 2 + [1.0] * 8)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


def test_flipping_averages_a_left_right_classifier_to_a_tie():
    actual = predict_probabilities(Column(), torch.zeros(1, 3, 4, 8), EvaluationProtocol(flip=True))
    torch.testing.assert_close(actual, torch.full_like(actual, 0.5))


def test_scales_resize_the_image_and_average():
    net, x = Pointwise(), torch.randn(1, 3, 20, 30)
    both = predict_probabilities(net, x, EvaluationProtocol(scales=(0.5, 1.0)))
    assert net.sizes == [(10, 15), (20, 30)]
    half = predict_probabilities(Pointwise(), x, EvaluationProtocol(scales=(0.5,)))
    torch.testing.assert_close(both, (half + softmax(x)) / 2)
    constant = torch.randn(1, 3, 1, 1).expand(1, 3, 20, 30)
    several = predict_probabilities(Pointwise(), constant, EvaluationProtocol(scales=(0.5, 0.75, 1.75), flip=True))
    torch.testing.assert_close(several, softmax(constant))


def test_the_protocol_string_describes_the_views():
    assert str(SINGLE_SCALE) == "single scale"
    assert str(EvaluationProtocol(scales=(0.5,))) == "scale 0.5"
    assert str(EvaluationProtocol((0.5, 0.75, 1.0), flip=True)) == "scales 0.5,0.75,1, flip"
    assert str(EvaluationProtocol(window=513)) == "single scale, window 513/342"


@pytest.mark.parametrize("wrong", [{"scales": ()}, {"scales": (0.0,)}, {"scales": (99.0,)}, {"window": 3}, {"flip": 1}])
def test_invalid_protocols_are_refused(wrong):
    with pytest.raises(OptionError):
        EvaluationProtocol(**wrong)
