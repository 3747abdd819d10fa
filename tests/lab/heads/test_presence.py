"""Class presence and its loss, against loops over pixels."""

from __future__ import annotations

import math

import pytest
import torch
from tolerances import assert_close

from hamburger.errors import ShapeError
from hamburger_lab.heads.losses import find_present_classes, presence_loss


def labels(b=3, h=5, w=7, k=6):
    target = torch.randint(0, k - 2, (b, h, w))
    target[torch.rand(b, h, w) < 0.3] = 255
    return target


def by_hand(logits, target):
    """Mean over classes and labelled images of -log of the probability of the truth."""
    losses = []
    for scores, image in zip(logits.tolist(), target.tolist(), strict=True):
        seen = {value for row in image for value in row} - {255}
        if not seen:
            continue
        for c, score in enumerate(scores):
            p = 1 / (1 + math.exp(-score))
            losses.append(-math.log(p if c in seen else 1 - p))
    return torch.tensor(sum(losses) / max(len(losses), 1), dtype=torch.float64)


def test_present_is_the_set_of_labels_without_255():
    target = labels()
    present = find_present_classes(target, 6)
    for row, image in zip(present.tolist(), target, strict=True):
        assert {c for c, yes in enumerate(row) if yes} == set(image.unique().tolist()) - {255}


def test_the_loss_matches_its_definition():
    logits, target = torch.randn(3, 6, dtype=torch.float64) * 3, labels()
    assert_close(presence_loss(logits, target), by_hand(logits, target))
    target[1] = 255  # an image that says nothing
    assert_close(presence_loss(logits, target), by_hand(logits, target))


def test_nothing_labelled_is_zero_with_a_gradient_of_zero():
    logits = torch.randn(2, 4, requires_grad=True)
    loss = presence_loss(logits, torch.full((2, 3, 3), 255))
    loss.backward()
    assert loss == 0 and not logits.grad.any()


def test_half_precision_is_widened():
    logits = torch.full((1, 3), 40.0, dtype=torch.float16)
    loss = presence_loss(logits, torch.zeros(1, 2, 2, dtype=torch.long))
    assert loss.dtype == torch.float32
    assert_close(loss, torch.tensor(80 / 3))


def test_shapes_are_named():
    with pytest.raises(ShapeError, match="presence_loss: b is 2 in logits"):
        presence_loss(torch.zeros(2, 4), torch.zeros(3, 5, 5, dtype=torch.long))
