"""Borders and their focal loss, against loops over pixels."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close

from hamburger.errors import OptionError, ShapeError
from hamburger_lab.heads.losses import find_borders, focal_loss


def labels(b=2, h=9, w=11, holes=0.3):
    target = torch.randint(0, 2, (b, 3, 3)).float()[:, None]
    target = F.interpolate(target, (h, w))[:, 0].long() * 7
    target[torch.rand(b, h, w) < holes] = 255
    return target


def borders_by_hand(target, radius):
    result = target.clone()
    for image, y, x in torch.cartesian_prod(*(torch.arange(n) for n in target.shape)).tolist():
        window = target[image, max(y - radius, 0) : y + radius + 1, max(x - radius, 0) : x + radius + 1]
        several = len(set(window.flatten().tolist()) - {255}) > 1
        result[image, y, x] = 1 if several else 255 if target[image, y, x] == 255 else 0
    return result


@pytest.mark.parametrize("radius", [1, 2, 4])
@pytest.mark.parametrize("holes", [0.0, 0.4, 0.9])
def test_a_border_is_where_a_window_has_two_classes(radius, holes):
    target = labels(holes=holes)
    actual = find_borders(target, radius=radius)
    assert torch.equal(actual, borders_by_hand(target, radius))
    assert actual.dtype == target.dtype
    if holes < 0.5:
        assert {0, 1} <= set(actual.unique().tolist())


def test_an_unlabelled_band_is_a_border_but_padding_is_not():
    row = torch.tensor([3, 3, 3, 3, 3, 3, 255, 255, 255, 5, 5, 5, 5, 5, 255, 255, 255, 255, 255])
    expected = [0, 0, 0, 0, 0, 0, 255, 1, 255, 0, 0, 0, 0, 0, *[255] * 5]  # of the band, only its middle sees both
    assert find_borders(row.repeat(1, 4, 1), radius=2)[0, 1].tolist() == expected


def focal_by_hand(logits, target, gamma, alpha):
    losses = []
    for score, y in zip(logits.flatten().tolist(), target.flatten().tolist(), strict=True):
        p = 1 / (1 + math.exp(-score))
        if y == 1:
            losses.append(-alpha * (1 - p) ** gamma * math.log(p))
        elif y == 0:
            losses.append(-(1 - alpha) * p**gamma * math.log(1 - p))
    return torch.tensor(sum(losses) / len(losses), dtype=torch.float64)


@pytest.mark.parametrize("gamma, alpha", [(2.0, 0.25), (0.0, 0.5), (1.5, 0.9)])
def test_the_loss_matches_its_definition(gamma, alpha):
    logits, target = torch.randn(2, 1, 9, 11, dtype=torch.float64) * 3, find_borders(labels(), radius=1)
    assert_close(focal_loss(logits, target, gamma=gamma, alpha=alpha), focal_by_hand(logits, target, gamma, alpha))


def test_the_papers_constants_are_the_defaults():
    logits, target = torch.randn(2, 1, 9, 11, dtype=torch.float64), find_borders(labels(), radius=1)
    assert_close(focal_loss(logits, target), focal_by_hand(logits, target, 2.0, 0.25))


def test_logits_are_resized_to_the_labels():
    logits, target = torch.randn(2, 1, 4, 5, dtype=torch.float64), find_borders(labels(), radius=1)
    large = F.interpolate(logits, (9, 11), mode="bilinear", align_corners=True)
    assert_close(focal_loss(logits, target), focal_loss(large, target))


def test_extreme_scores_and_no_pixels_stay_finite():
    logits = torch.tensor([[[[300.0, -300.0]]]], requires_grad=True)
    loss = focal_loss(logits, torch.tensor([[[0, 1]]]))
    loss.backward()
    assert_close(loss.detach(), torch.tensor((300 * 0.75 + 300 * 0.25) / 2))
    assert logits.grad.isfinite().all() and logits.grad.all()
    assert focal_loss(logits, torch.full((1, 1, 2), 255)) == 0


def test_messages():
    target = torch.zeros(1, 4, 4, dtype=torch.long)
    with pytest.raises(OptionError, match="find_borders: radius must be a whole number of at least 1, got 0"):
        find_borders(target, radius=0)
    with pytest.raises(OptionError, match="focal_loss: alpha must be a finite number at least 0 and at most 1"):
        focal_loss(torch.zeros(1, 1, 4, 4), target, alpha=2)
    with pytest.raises(ShapeError, match="focal_loss: b is 2"):
        focal_loss(torch.zeros(2, 1, 4, 4), target)
