"""Counts and scores against torchmetrics, scikit-learn and plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hamburger.errors import InputError, OptionError, ShapeError
from hamburger.training.supervised import Confusion, accuracy, confusion, iou, miou


def drawn(k=5, shape=(3, 17, 13), unlabelled=0.2):
    prediction = torch.randint(k, shape)
    label = torch.where(torch.rand(shape) < 0.5, prediction, torch.randint(k, shape))
    return prediction, torch.where(torch.rand(shape) < unlabelled, 255, label)


def test_confusion_matches_two_other_libraries():
    from sklearn.metrics import confusion_matrix
    from torchmetrics.classification import MulticlassConfusionMatrix

    prediction, label = drawn()
    ours = confusion(prediction, label.to(torch.uint8), 5)
    assert ours.dtype == torch.int64
    assert torch.equal(ours, MulticlassConfusionMatrix(5, ignore_index=255)(prediction, label))
    kept = label != 255
    assert ours.tolist() == confusion_matrix(label[kept], prediction[kept], labels=range(5)).tolist()


def test_scores_match_sklearn():
    from sklearn.metrics import accuracy_score, jaccard_score

    prediction, label = drawn()
    matrix, kept = confusion(prediction, label, 5), label != 255
    assert miou(matrix) == pytest.approx(jaccard_score(label[kept], prediction[kept], average="macro"), abs=1e-12)
    assert iou(matrix).tolist() == pytest.approx(jaccard_score(label[kept], prediction[kept], average=None).tolist())
    assert accuracy(matrix) == pytest.approx(accuracy_score(label[kept], prediction[kept]), abs=1e-12)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 1000))
def test_confusion_does_not_depend_on_the_batches(cuts, seed):
    torch.manual_seed(seed)
    prediction, label = drawn(shape=(sum(cuts), 3))
    counts = Confusion(5)
    for p, y in zip(prediction.split(cuts), label.split(cuts), strict=True):
        counts.update(p, y)
    assert torch.equal(counts.matrix, confusion(prediction, label, 5))


def test_miou_is_pooled_over_the_set():
    """One image all right, one half right in class 1: pooled 1/2 and 3/4, not the mean over images."""
    counts = Confusion(2)
    counts.update(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 1]))
    counts.update(torch.tensor([0, 1]), torch.tensor([1, 1]))
    assert iou(counts.matrix).tolist() == pytest.approx([1 / 2, 3 / 4])
    assert miou(counts.matrix) == pytest.approx(5 / 8)


def test_absent_class_is_not_in_the_mean():
    matrix = confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), 3)
    assert math.isnan(iou(matrix)[2])
    assert miou(matrix) == pytest.approx((1 / 2 + 1 / 2) / 2)
    predicted_only = confusion(torch.tensor([0, 2]), torch.tensor([0, 0]), 3)
    assert iou(predicted_only)[2] == 0
    assert miou(predicted_only) == pytest.approx((1 / 2 + 0) / 2)


def test_counts_exceed_float_precision():
    counts = Confusion(2)
    counts.matrix += torch.tensor([[2**53, 0], [0, 1]])
    counts.update(torch.tensor([0]), torch.tensor([0]))
    assert counts.matrix[0, 0].item() == 2**53 + 1


def test_mistakes_are_named():
    with pytest.raises(InputError, match="label 7 is outside the 5 classes"):
        confusion(torch.tensor([0, 0]), torch.tensor([7, 255]), 5)
    with pytest.raises(ShapeError, match="one shape"):
        confusion(torch.zeros(2, 3), torch.zeros(3, 2), 5)
    with pytest.raises(OptionError):
        Confusion(0)
    assert math.isnan(miou(confusion(torch.zeros(4).long(), torch.full((4,), 255), 2)))
