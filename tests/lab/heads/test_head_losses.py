"""Names and published weights of the loss terms of every head."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from small_heads import CASES, LABELS, build, labels, maps
from tolerances import assert_close


def ce(logits, target):
    """Cross-entropy over labelled pixels, by its definition."""
    logits = F.interpolate(logits, LABELS, mode="bilinear", align_corners=True).movedim(1, -1)
    chosen = target != 255
    probability = logits[chosen].exp() / logits[chosen].exp().sum(1, keepdim=True)
    return -probability.gather(1, target[chosen][:, None]).log().mean()


def bce(logits, target):
    """Is the class in the image? One question per class."""
    losses = []
    for scores, image in zip(logits, target, strict=True):
        for c, score in enumerate(scores):
            p = torch.sigmoid(score)
            losses.append(-torch.log(p if (image == c).any() else 1 - p))
    return torch.stack(losses).mean()


def border(logits, target):
    """Focal loss on pixels whose 7 x 7 window holds two classes."""
    p = torch.sigmoid(F.interpolate(logits, LABELS, mode="bilinear", align_corners=True)[:, 0])
    padded = F.pad(target, (3, 3, 3, 3), value=255)
    windows = padded.unfold(1, 7, 1).unfold(2, 7, 1).flatten(3)
    classes = sum((windows == c).any(-1).long() for c in range(5))
    edge = classes > 1
    loss = torch.where(edge, -0.25 * (1 - p) ** 2 * p.log(), -0.75 * p**2 * (1 - p).log())
    return loss[edge | (target != 255)].mean()


def aux(weight):
    return lambda aux, y: {"aux": weight * ce(aux["aux"], y)}


def encoded(aux_weight):
    return lambda aux, y: {"aux": aux_weight * ce(aux["aux"], y), "se": 0.2 * bce(aux["se"], y)}


def dual(aux, y):
    return {"position": ce(aux["position"], y), "channel": ce(aux["channel"], y)}


def smooth(aux, y):
    return {"smooth": sum(ce(aux[f"smooth{i}"], y) for i in (3, 4, 5))}


def smooth_and_border(aux, y):
    return smooth(aux, y) | {"border": 0.1 * sum(border(aux[f"border{i}"], y) for i in (2, 3, 4, 5))}


def mask(aux, y):
    return {"mask": sum(ce(aux[f"mask{i}"], y) for i in (2, 3, 4, 5)) / 4}


def nothing(aux, y):
    return {}


EXPECTED = {
    "apcnet": aux(0.4),
    "apcnet-plain": nothing,
    "cfnet": aux(0.2),
    "cfnet-encoding": encoded(0.2),
    "danet": dual,
    "danet-paper": lambda aux, y: dual(aux, y) | {"aux": 0.4 * ce(aux["aux"], y)},
    "dfn": smooth_and_border,
    "dfn-smooth": smooth,
    "dmnet": aux(0.4),
    "dmnet-fusion": aux(0.4),
    "emanet": nothing,
    "emanet-aux": aux(0.4),
    "encnet": encoded(0.2),
    "encnet-unsupervised": nothing,
    "hamnet": nothing,
    "lightham": nothing,
    "ocrnet": aux(0.4),
    "pspnet": aux(0.4),
    "sanet": lambda aux, y: mask(aux, y) | {"cat": 0.2 * bce(aux["cat"], y)},
    "sanet-squash": mask,
    "sgr": nothing,
    "sgr-fixed": aux(0.4),
    "spygr": nothing,
    "spygr-one": aux(0.4),
}


def test_every_head_has_a_loss_case():
    assert set(EXPECTED) == set(CASES)


@pytest.mark.parametrize("case", EXPECTED)
def test_terms_and_weights_are_those_of_the_paper(case):
    head, target = build(case).double().train(), labels()
    target[0][target[0] == 3] = 255  # a class that one image lacks
    outputs = head(maps(dtype=torch.float64))
    terms = head.loss(outputs, target)
    main = (
        {"dense": 0.8 * ce(outputs.logits, target)} if case.startswith("sanet") else {"ce": ce(outputs.logits, target)}
    )
    expected = main | EXPECTED[case](outputs.aux, target)
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        # the cross-entropy itself is computed in float32
        assert_close(terms[name].float(), value, slack=2)
        assert math.isfinite(value.detach()) and value.detach() > 0
