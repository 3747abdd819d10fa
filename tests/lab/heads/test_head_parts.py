"""Micro-batches give the loss of the whole batch, for every term of every head."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from small_heads import CHANNELS, CLASSES, LABELS, SIZES, build

from hamburger.segmentation.data.batches import SegmentationBatch
from hamburger.segmentation.task import SEGMENTATION


def one_by_one(head):
    """Training mode without batch statistics and random numbers."""
    head.train()
    for module in head.modules():
        if any(word in type(module).__name__ for word in ("Norm", "Dropout", "ACF")):  # the last drops attention
            module.eval()
    return head


@pytest.mark.parametrize("case", ["encnet", "cfnet-encoding", "dfn", "sanet", "pspnet", "ocrnet"])
def test_micro_batches_add_up_to_the_batch(case):
    head = one_by_one(build(case))
    generator = torch.Generator().manual_seed(1)
    features = [torch.rand(4, c, *size, generator=generator) for c, size in zip(CHANNELS, SIZES, strict=True)]
    labels = torch.randint(0, CLASSES, (4, *LABELS), generator=generator)
    labels[0, :, :40] = 255  # parts that differ in how much of them is labelled
    labels[1] = 255
    whole = head.loss(head([f.clone() for f in features]), labels)
    halves = (slice(0, 2), slice(2, 4))
    parts = [SegmentationBatch(torch.empty(0), labels[half], []) for half in halves]
    weights = SEGMENTATION.loss_weights(SimpleNamespace(head=head), parts)
    total = dict.fromkeys(whole, torch.zeros(()))
    for i, half in enumerate(halves):
        terms = head.loss(head([f[half] for f in features]), labels[half])
        for name, value in terms.items():
            total[name] = total[name] + value * weights[i].get(name, weights[i][""])
    for name, expected in whole.items():
        torch.testing.assert_close(
            total[name], expected, rtol=1e-4, atol=1e-6, msg=lambda message, name=name: f"{name}: {message}"
        )
