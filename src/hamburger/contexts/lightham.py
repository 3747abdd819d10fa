"""LightHam, the decoder of SegNeXt (Guo, Lu, Hou, Liu, Cheng and Hu, NeurIPS 2022), without dropout and classifier.

Checked against the authors' code and mmsegmentation's. Both run the solver with autograd on: LightHam is trained by
back-propagation through all steps, not by the one-step gradient of the Hamburger paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.contexts.common import check_counts, check_sizes, contexts, conv
from hamburger.errors import OptionError, ShapeError
from hamburger.hams.decompose import Gradient, GradientName
from hamburger.layers.burger import Hamburger
from hamburger.tensors import check_tensor

RANK = 64  # of the published network


@contexts.register("lightham")
class LightHam(nn.Module):
    """A Hamburger with group norms between two 1x1 convolutions.   b c h w   ->   b c h w

        z = ReLU(GN(W_s [x_1; x_2; ...]))                        d x n
        y = ReLU(z + GN(W_u NMF(ReLU(W_l z + bias))))            d x n
        out = ReLU(GN(W_a y))                                    c x n

    - `inner`: the width d, by default the channels.
    - `in_channels`: the widths of several maps, which `forward` then takes as a sequence; all are resized to the first.
    - `rank`, `steps`, `eval_steps`, `grad`, `seed`: those of `Hamburger`. As published, the rank is 64 by default where
      the width is above that, and evaluation takes one step more than training. `grad="one-step"` is the gradient of
      the Hamburger paper, with the same outputs.
    - `groups`: of each group norm.
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        in_channels: Sequence[int] | None = None,
        rank: int | None = None,
        steps: int = 6,
        eval_steps: int = 7,
        grad: GradientName | Gradient = "bptt",
        groups: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        inner = channels if inner is None else inner
        check_sizes("LightHam", channels=channels, inner=inner, groups=groups)
        if rank is None and inner > RANK:
            rank = RANK
        if in_channels is not None:
            check_counts("LightHam", "in_channels", in_channels, example=(64, 128))
        self.in_channels = (channels,) if in_channels is None else tuple(in_channels)
        for name, width in (("channels", channels), ("inner", inner)):
            if width % groups:
                raise OptionError(
                    f"LightHam: {groups} groups do not divide {name}={width}; choose a multiple, or set groups"
                )

        def norm(width: int) -> nn.Module:
            return nn.GroupNorm(groups, width)

        def block(a: int, c: int) -> nn.Sequential:
            project = conv(a, c, bias=False)
            nn.init.kaiming_normal_(project.weight, mode="fan_out", nonlinearity="relu")
            return nn.Sequential(project, norm(c), nn.ReLU())

        self.squeeze = block(sum(self.in_channels), inner)
        self.hamburger = Hamburger(
            inner,
            ham="nmf",
            rank=rank,
            steps=steps,
            eval_steps=eval_steps,
            grad=grad,
            version="v1",
            norm=norm,
            seed=seed,
        )
        self.align = block(inner, channels)

    def forward(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        maps = [x] if isinstance(x, Tensor) else list(x)
        for m in maps:
            check_tensor("LightHam", "every map", m)
        if any(m.dim() != 4 for m in maps) or tuple(m.shape[1] for m in maps) != self.in_channels:
            raise ShapeError(
                f"LightHam: built for {len(self.in_channels)} map(s) of {self.in_channels} channels, got "
                f"{[tuple(m.shape) for m in maps]}; set in_channels to the widths of the maps"
            )
        size = maps[0].shape[2:]
        # without align_corners, as in every published setting of this decoder
        maps = [m if m.shape[2:] == size else F.interpolate(m, size, mode="bilinear") for m in maps]
        return self.align(self.hamburger(self.squeeze(torch.cat(maps, dim=1))))
