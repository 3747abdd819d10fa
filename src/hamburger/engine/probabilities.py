"""Class probabilities of whole images: averaged over scales, the mirrored image, and the places of a window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import OptionError, check_count, check_flag, check_positive

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # the paper's test scales


@dataclass(frozen=True)
class Protocol:
    """How an image is looked at. As a string it stands beside every score that was made so."""

    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    window: int | None = None  # side of a square; neighbours overlap by a third

    def __post_init__(self) -> None:
        if not self.scales:
            raise OptionError("evaluation: scales is empty; give at least one, such as 1.0")
        for scale in self.scales:
            check_positive("evaluation", "a scale", scale, most=8)
        check_flag("evaluation", "flip", self.flip)
        if self.window is not None:
            check_count("evaluation", "window", self.window, least=16)

    @property
    def stride(self) -> int | None:
        return None if self.window is None else -(-2 * self.window // 3)

    def __str__(self) -> str:
        single = len(self.scales) == 1
        listed = ",".join(f"{scale:g}" for scale in self.scales)
        said = ["single scale" if self.scales == (1.0,) else f"scale {listed}" if single else f"scales {listed}"]
        if self.flip:
            said.append("flip")
        if self.window is not None:
            said.append(f"window {self.window}/{self.stride}")
        return ", ".join(said)


SINGLE = Protocol()


def probabilities(net: nn.Module, x: Tensor, protocol: Protocol = SINGLE) -> Tensor:
    """Mean of the softmax over all views.   x: b 3 h w, normalised   ->   b k h w, float32"""
    h, w = x.shape[-2:]
    total: Tensor | None = None
    for scale in protocol.scales:
        size = (max(1, round(scale * h)), max(1, round(scale * w)))
        # as training resizes: pixels are squares, and what shrinks is not smoothed first
        view = x if size == (h, w) else F.interpolate(x, size=size, mode="bilinear")
        for flipped in (False, True) if protocol.flip else (False,):
            found = _windows(net, view.flip(-1) if flipped else view, protocol)
            found = found.flip(-1) if flipped else found
            if size != (h, w):
                found = F.interpolate(found, size=(h, w), mode="bilinear")
            total = found if total is None else total.add_(found)
    assert total is not None
    return total / (len(protocol.scales) * (2 if protocol.flip else 1))


def labels(net: nn.Module, x: Tensor, protocol: Protocol = SINGLE) -> Tensor:
    """The likeliest class of each pixel.   b 3 h w   ->   b h w, int64"""
    if protocol == SINGLE:  # the softmax keeps the order
        return net(x).argmax(1)
    return probabilities(net, x, protocol).argmax(1)


def _windows(net: nn.Module, x: Tensor, protocol: Protocol) -> Tensor:
    """b 3 h w   ->   b k h w: all at once, or the mean over the windows that see a pixel."""
    window, stride = protocol.window, protocol.stride
    h, w = x.shape[-2:]
    if window is None or stride is None or (h <= window and w <= window):
        return net(x).float().softmax(1)
    total: Tensor | None = None
    count = x.new_zeros(1, 1, h, w)
    for top in _starts(h, window, stride):
        for left in _starts(w, window, stride):
            place = (..., slice(top, top + window), slice(left, left + window))
            found = net(x[place]).float().softmax(1)
            if total is None:
                total = found.new_zeros(found.shape[0], found.shape[1], h, w)
            total[place] += found
            count[place] += 1
    assert total is not None
    return total / count


def _starts(length: int, window: int, stride: int) -> Iterator[int]:
    """Where windows begin along an axis: every `stride`, and the last flush with the end."""
    last = max(0, length - window)
    yield from range(0, last, stride)
    yield last
