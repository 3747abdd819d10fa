"""The EM attention unit of EMANet (Li, Zhong, Wu, Yang, Lin and Liu, ICCV 2019). Checked against the authors' code."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hamburger import distributed
from hamburger.contexts.common import check_map, check_sizes, contexts, conv, conv_norm_relu
from hamburger.errors import check_flag, check_positive, check_seed
from hamburger.layers.recompute import RecentBases
from hamburger.tensors import full_precision, is_recomputing, widen

EPS = 1e-6


@contexts.register("ema")
class EMAU(nn.Module):
    """Reconstruct pixels from r bases found by expectation-maximisation.   b c h w   ->   b c h w

        F = W_l x + bias                              c x n
        E-step   Z  = softmax_over_r(F^T mu)          n x r
        M-step   mu = columns of F Z diag(1 / sum_over_pixels Z), scaled to length 1          c x r
        out = ReLU(x + BN(W_u ReLU(mu Z^T)))

    `steps` rounds of E and M start from the stored bases. The reconstruction uses the last mu, and the Z of the last
    E-step, which was computed from the mu before it. All of this is constant to autograd: the convolution W_l is never
    trained (so it is frozen here, which DDP needs), and the input gets its gradient through the skip alone.

    - `rank`: the number r of bases.
    - `momentum`: in training the stored bases become momentum * bases + (1 - momentum) * mean of mu over the samples of
      all ranks; 0.9 is the authors' value, which other implementations write as 0.1.
    - `renormalize`: scale that mean to unit columns before it is averaged in, as mmsegmentation does.
    - `seed`: of the first bases, which are the same on every rank and are saved with the weights.
    """

    bases: Tensor

    def __init__(
        self,
        channels: int,
        *,
        rank: int = 64,
        steps: int = 3,
        momentum: float = 0.9,
        renormalize: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_sizes("EMAU", channels=channels, rank=rank, steps=steps)
        check_positive("EMAU", "momentum, the share of the old bases that stays,", momentum, zero=True, most=1.0)
        check_flag("EMAU", "renormalize", renormalize)
        check_seed("EMAU", seed)
        self.channels = channels
        self.steps, self.momentum, self.renormalize = steps, momentum, renormalize
        self.lower = conv(channels, channels, bias=True).requires_grad_(False)
        self.upper = conv_norm_relu(channels, channels, relu=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 / channels))
        # the columns are scaled to length 1, so the spread of the draw does not matter
        drawn = torch.randn(1, channels, rank, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("bases", normalise_columns(drawn))
        self._recent = RecentBases()

    def forward(self, x: Tensor) -> Tensor:
        check_map("EMAU", x, self.channels)
        with torch.no_grad():
            features = self.lower(x)
            reconstruction, bases = self.attend(features.flatten(2))
            if self.training and not is_recomputing():
                self._update(bases)
        y = self.upper(torch.relu(reconstruction).unflatten(2, x.shape[2:]).to(features.dtype))
        return torch.relu(x + y)

    def attend(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu Z^T and mu.   b c n   ->   b c n,  b c r"""
        wide = widen(features)
        first = self._recent.select("EMAU", self.bases, wide) if self.training else self.bases
        bases = first.to(wide.dtype).expand(wide.shape[0], -1, -1)
        # float32 under autocast: weights of 1 / n are below what float16 can hold
        with full_precision(wide.device.type):
            for _ in range(self.steps):
                weights = (wide.mT @ bases).softmax(dim=2)  # b n r
                shares = weights / (EPS + weights.sum(dim=1, keepdim=True))
                bases = normalise_columns(wide @ shares)
            return bases @ weights.mT, bases

    def _update(self, bases: Tensor) -> None:
        mean = distributed.mean_over_samples(bases)[None]
        mean = normalise_columns(mean) if self.renormalize else mean
        moved = torch.lerp(mean, self.bases.to(mean.dtype), self.momentum).to(self.bases.dtype)
        # a batch with NaN must not spoil the average; decided on the device, without synchronising
        self.bases.copy_(torch.where(torch.isfinite(moved).all(), moved, self.bases))


def normalise_columns(bases: Tensor) -> Tensor:
    """Scale the columns to length 1.   b c r   ->   b c r"""
    return bases / (EPS + torch.linalg.vector_norm(bases, dim=1, keepdim=True))
