"""Small segmentation heads, those of hamburger-lab included, with every option that changes what is built."""

from __future__ import annotations

import torch
from torch import nn

import hamburger_lab.heads  # noqa: F401  (registers)
from hamburger.segmentation.heads import heads

CHANNELS = (4, 6, 8, 16)
CLASSES = 5
SIZES = ((17, 13), (9, 7), (5, 4), (5, 4))  # odd, rounded up, the last two at one stride
LABELS = (66, 51)

AUX = {"aux_width": 6}
SMALL = {
    "apcnet": {"width": 8, **AUX},
    "cfnet": {"width": 8, "attention_heads": 2, **AUX},
    "danet": {"width": 16, **AUX},
    "dfn": {"width": 8, "border_width": 4},
    "dmnet": {"width": 8, **AUX},
    "emanet": {"width": 8, "out_width": 6, "rank": 4, **AUX},
    "encnet": {"width": 8, "codewords": 4, **AUX},
    "hamnet": {"width": 8, "context_options": {"rank": 4}},
    "lightham": {"width": 8, "rank": 4, "groups": 4},
    "ocrnet": {"width": 8, "key_width": 4, **AUX},
    "pspnet": {"width": 8, **AUX},
    "sanet": {"width": 6},
    "sgr": {"width": 8, **AUX},
    "spygr": {"width": 8, "embedding": 4, **AUX},
}
# every option of the papers that changes what is built
VARIANTS = {
    "apcnet-plain": ("apcnet", {"fusion": False, "scales": (1, 2), "aux_weight": 0.0}),
    "cfnet-encoding": ("cfnet", {"encoding": True, "mixtures": 2}),
    "danet-paper": ("danet", {"cam_invert": False, "inner": 3, "aux_weight": 0.4}),
    "dfn-smooth": ("dfn", {"border_weight": 0.0}),
    "dmnet-fusion": ("dmnet", {"fusion": True, "sizes": (2, 3)}),
    "emanet-aux": ("emanet", {"aux_weight": 0.4}),
    "encnet-unsupervised": ("encnet", {"se_weight": 0.0, "aux_weight": 0.0}),
    "sanet-squash": ("sanet", {"squash": True, "upsample": "nearest", "cat_weight": 0.0}),
    "sgr-fixed": ("sgr", {"adjacency": "identity", "nodes": 3, "aux_weight": 0.4}),
    "spygr-one": ("spygr", {"scales": 1, "aux_weight": 0.4}),
}
CASES = {name: (name, {}) for name in heads.names()} | VARIANTS


def build(case, channels=CHANNELS, **options):
    """Build the head with non-zero gates, so that every branch changes the output."""
    name, chosen = CASES[case]
    torch.manual_seed(0)
    head = heads.create(name, channels, CLASSES, **{**SMALL.get(name, {}), **chosen, **options})
    for parameter in head.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)
    return head


def maps(b=2, *, grad=False, dtype=torch.float32):
    return [torch.randn(b, c, *size, dtype=dtype).requires_grad_(grad) for c, size in zip(CHANNELS, SIZES, strict=True)]


def labels(b=2):
    target = torch.randint(0, CLASSES, (b, *LABELS))
    target[:, 20:30] = 255
    return target
