"""Parameter counts at the published widths (ResNet's maps, 21 classes), computed independently."""

from __future__ import annotations

import pytest
import torch
from reference_layers import count
from small_heads import CASES

from hamburger.segmentation.heads.base import heads

STAGES = (256, 512, 1024, 2048)
K = 21


def conv(a, b, k=1):
    return a * b * k * k


def linear(a, b):
    return a * b + b


def cbr(a, b, k=1):
    return conv(a, b, k) + 2 * b


def fcn(width=256):
    return cbr(1024, width, 3) + linear(width, K)


def rrb(a, b):
    return conv(a, b) + cbr(b, b, 3) + conv(b, b, 3)


def enc(c, codewords=32):
    return cbr(c, c) + codewords * c + codewords + 2 * codewords + linear(c, c) + linear(c, K)


def apc_scale(s):
    return 2 * cbr(2048, 512) + 3 * cbr(512, 512) + linear(512, s * s)


def squeeze(a, c=256):
    return 2 * (conv(a, c, 3) + c + 2 * c + conv(c, c, 3) + c + 2 * c)


ACF = linear(512, 512) + linear(512, 512) + cbr(512, 512)
SMOOTH = (
    cbr(2048, 512)
    + sum(rrb(c, 512) for c in STAGES)
    + 4 * (linear(1024, 512) + linear(512, 512) + rrb(512, 512))
    + 4 * (rrb(512, 9 * K) + linear(9 * K, K))
)
BORDER = sum(rrb(c, 21) for c in STAGES) + 3 * rrb(21, 21) + 4 * (rrb(21, 9) + linear(9, 1))

COUNTS = {
    "pspnet": 4 * cbr(2048, 512) + cbr(4096, 512, 3) + linear(512, K) + fcn(),
    "apcnet": sum(apc_scale(s) for s in (1, 2, 3, 6)) + cbr(4096, 512, 3) + linear(512, K) + fcn(),
    "dmnet": 4 * (linear(2048, 512) + cbr(2048, 512) + 2 * 512) + cbr(4096, 512, 3) + linear(512, K) + fcn(),
    "encnet": cbr(2048, 512, 3) + enc(512) + linear(512, K) + fcn(),
    "danet": 2 * (cbr(2048, 512, 3) + cbr(512, 512, 3))
    + 2 * linear(512, 64) + linear(512, 512) + 2 + 3 * linear(512, K),
    "emanet": cbr(2048, 512, 3) + linear(512, 512) + cbr(512, 512) + cbr(512, 256, 3) + linear(256, K),
    "cfnet": cbr(2048, 512, 3) + ACF + cbr(512, 512) + linear(1024, K) + fcn(),
    "spygr": cbr(2048, 512, 3) + 3 * (conv(512, 64) + conv(512, 64) + cbr(512, 512)) + linear(512, K),
    "sgr": cbr(2048, 256, 3) + 256 * K + 256 * 256 + (256 + 300) * 256 + 256 * 256 + K * K + linear(256, K),
    "ocrnet": fcn() + cbr(2048, 512, 3) + 2 * (cbr(512, 256) + cbr(256, 256)) + cbr(512, 256) + cbr(256, 512)
    + cbr(1024, 512) + linear(512, K),
    "dfn": SMOOTH + BORDER,
    "sanet": sum(squeeze(c) for c in STAGES) + cbr(1024, 256, 3) + linear(256, K) + 4 * linear(256, K) + linear(256, K),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_at_the_published_widths(name):
    with torch.device("meta"):
        head = heads.create(name, STAGES, K)
    assert count(head) == COUNTS[name]


def test_every_head_has_a_parameter_count():
    assert set(COUNTS) == {name for name in CASES if name in heads} - {"hamnet", "lightham"}
