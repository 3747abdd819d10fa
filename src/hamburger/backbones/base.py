"""The backbone interface and registry, and `tiny`, a backbone that two CPU cores can train."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor, nn

from hamburger.errors import OptionError, check_count
from hamburger.layers.norm import BatchNorm2d
from hamburger.registry import Registry

SHOWN = 6


@dataclass
class LoadReport:
    """What happened to every entry when weights were loaded into a backbone.

    Every entry of the backbone is in `loaded`, `missing` or `mismatched`. Unused entries of the file are in
    `unexpected`, or in `ignored` if no backbone has them (classifiers, counters, other parts of a network).
    """

    source: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)  # name -> why
    unexpected: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # reasons why weights that fit may still be wrong
    notes: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of the backbone's entries that were loaded."""
        return len(self.loaded) / max(len(self.loaded) + len(self.missing) + len(self.mismatched), 1)

    @property
    def complete(self) -> bool:
        return not (self.missing or self.mismatched or self.unexpected or self.doubts)

    def __str__(self) -> str:
        titles = ("loaded", "missing", "mismatched", "unexpected", "ignored")
        lines = [f"{self.source}: " + ", ".join(f"{len(getattr(self, title))} {title}" for title in titles)]
        mismatched = [f"{name} ({why})" for name, why in self.mismatched.items()]
        for title, names in (
            ("missing from the file", self.missing),
            ("mismatched", mismatched),
            ("unexpected in the file", self.unexpected),
            ("ignored", self.ignored),
        ):
            if names:
                more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                lines.append(f"  {title}: {', '.join(names[:SHOWN])}{more}")
        lines += [f"  doubt: {doubt}" for doubt in self.doubts]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


class Backbone(nn.Module):
    """b 3 h w   ->   [b c_1 h/s_1 w/s_1, ..., b c_m h/s_m w/s_m], for any h and w (sizes round up).

    Maps come from shallow to deep; `channels` and `strides` are their widths and strides.
    """

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    # The pixel that position j of a map of stride s is centred on: pixel s j (True: convolutions padded on both sides),
    # the middle of patch j (False), or unknown, since the encoder takes images of one size only (None).
    corners: bool | None = True
    report: LoadReport | None = None  # set when pretrained weights were loaded

    def forward(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError


# constructors take keyword arguments only, including `output_stride`
backbones: Registry[Backbone] = Registry("backbone")


@backbones.register("tiny")
class TinyBackbone(Backbone):
    """b 3 h w   ->   maps of 1/2, 1/2, 1/4 and 1/4, with w, w, 2w and 2w channels; w is `width`.

    Four layers of 3x3 convolution, batch norm and ReLU, which two CPU cores can train. The receptive field of the last
    map is only 19 x 19 pixels, so that a task can depend on context.
    """

    def __init__(self, *, width: int = 32, output_stride: int = 4) -> None:
        super().__init__()
        check_count("tiny", "width", width, least=1)
        if output_stride != 4:
            raise OptionError(
                f"tiny: the output stride is always 4 (got output_stride={output_stride!r}); pass output_stride=4"
            )
        self.channels = (width, width, 2 * width, 2 * width)
        self.strides = (2, 2, 4, 4)
        layers, a = [], 3
        for c, stride in zip(self.channels, (2, 1, 2, 1), strict=True):
            convolution = nn.Conv2d(a, c, 3, stride, padding=1, bias=False)
            nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * c)))
            layers.append(nn.Sequential(convolution, BatchNorm2d(c), nn.ReLU(inplace=True)))
            a = c
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for layer in self.layers:
            x = layer(x)
            maps.append(x)
        return maps
