"""Object-contextual representations: OCR (Yuan, Chen, Wang, ECCV 2020).

Checked against an independent implementation. Dropout is an option, in the same place as in the original; the original
rate (0.05) is uncertain. CBR: a 1 x 1 convolution, batch norm, ReLU.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import check_dropout, check_map, contexts, conv, conv_norm_relu, softmax_float32
from hamburger.errors import OptionError, check_count
from hamburger.layers.norm import Dropout2d
from hamburger.tensors import check_shapes

REGIONS = 64


@contexts.register("ocr")
class OCR(nn.Module):
    """Positions attend to the mean features of soft object regions.   b c h w   ->   b c h w

        M = softmax_over_positions(logits)               b k n: where region k is
        R = x Mᵀ                                         b c k: what it looks like
        A = softmax_over_regions(q(x)ᵀ k(R) / √d)        b n k; q, k: two CBR each, d = `width`
        y = CBR(v(R) Aᵀ)                                 b c n; v: one CBR
        out = CBR((y, x))

    The regions are those of coarse class logits b k h w, any k, given to `forward(x, logits)`; in the paper they come
    from an auxiliary head on an earlier stage. Where none are given:

    - `num_classes=k` adds a linear classifier on x for them, and `forward(x, return_logits=True)` returns (out, logits)
      for the auxiliary loss that trains it.
    - without it, the means of `regions` groups of channels are used: they have no parameters and no meaning, but the
      same cost. This is the library's choice, for benchmarks and for heads without coarse logits. By default `regions`
      is the largest power of two up to 64 that divides the channels.

    `dropout` drops whole channels of the output in training.
    """

    def __init__(
        self,
        channels: int,
        *,
        width: int | None = None,
        num_classes: int | None = None,
        regions: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_count("OCR", "channels", channels, least=2)
        width = channels // 2 if width is None else width
        check_count("OCR", "width", width, least=1)
        check_dropout("OCR", dropout)
        if num_classes is not None and regions is not None:
            raise OptionError("OCR: the regions are the classes; give num_classes or regions, not both")
        if num_classes is not None:
            check_count("OCR", "num_classes", num_classes, least=1)
        self.channels = channels
        self.regions = math.gcd(channels, REGIONS) if regions is None else regions
        check_count("OCR", "regions", self.regions, least=1)
        if channels % self.regions:
            raise OptionError(f"OCR: {regions} regions do not divide the channels {channels}; choose a divisor")
        self.query = nn.Sequential(conv_norm_relu(channels, width), conv_norm_relu(width, width))
        self.key = nn.Sequential(conv_norm_relu(channels, width), conv_norm_relu(width, width))
        self.value = conv_norm_relu(channels, width)
        self.upper = conv_norm_relu(width, channels)
        self.join = conv_norm_relu(2 * channels, channels)
        self.dropout = Dropout2d(dropout)
        self.classifier = conv(channels, num_classes, bias=True) if num_classes is not None else None

    def forward(
        self, x: Tensor, logits: Tensor | None = None, return_logits: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        check_map("OCR", x, self.channels)
        if logits is None:
            logits = self.coarse(x)
        check_shapes("OCR", x=(x, "b c h w"), logits=(logits, "b k h w"))
        objects = self.gather(x, logits)[..., None]  # b c k 1: a map of k positions, for the convolutions
        y = F.scaled_dot_product_attention(
            # the fused kernels need four axes, so one head, and contiguous rows
            *(t.flatten(2).mT.contiguous()[:, None] for t in (self.query(x), self.key(objects), self.value(objects))),
        )
        y = self.upper(y[:, 0].mT.unflatten(2, x.shape[2:]))
        out = self.dropout(self.join(torch.cat([y, x], dim=1)))
        return (out, logits) if return_logits else out

    def coarse(self, x: Tensor) -> Tensor:
        """Return the logits that define the regions where none are given.   b c h w   ->   b k h w"""
        if self.classifier is not None:
            return self.classifier(x)
        return x.unflatten(1, (self.regions, -1)).mean(2)

    def gather(self, x: Tensor, logits: Tensor) -> Tensor:
        """Return the paper's region features: x averaged with weights softmax_over_positions(logits).   ->   b c k"""
        return x.flatten(2) @ softmax_float32(logits.flatten(2), dim=2).to(x.dtype).mT
